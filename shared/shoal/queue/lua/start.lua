-- Mark jobs as running that a worker still holds and whose status is kept. A job that was pushed without a script gets its
-- own id for its number; it is forgotten if an unanswered job has that id.
-- args: worker, jobs: list of {key, id}
-- Returns {started}: for each job true; false if it was cancelled, or put back, and must not run.
local held, started = held_by(args.worker), {}
call('PERSIST', held) -- allowed when memory is full, and so is what follows it
for n, job in ipairs(args.jobs) do
  local score, record = call('ZSCORE', held, job.key), record_of(job.id)
  if score and job.key ~= job.id then
    if redis.pcall('HEXISTS', record, 'lane') == 1 then
      remove(job.key)
      score = false
    else
      local lane = call('HGET', record_of(job.key), 'lane')
      local jobs_of_lane = key_of(lane, 'jobs')
      call('RENAME', record_of(job.key), record)
      call('ZADD', jobs_of_lane, call('ZSCORE', jobs_of_lane, job.key), job.id)
      call('ZREM', jobs_of_lane, job.key)
      call('ZADD', held, score, job.id)
      call('ZREM', held, job.key)
    end
  end
  started[n] = score and true or false
  if score then call('HSET', record, 'status', 'running') end
end
settle()
return cmsgpack.pack({started = started})
