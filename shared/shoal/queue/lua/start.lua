-- Mark jobs as running that a worker still holds and whose status is kept. A job that was pushed without a script gets its
-- own id for its number; it is forgotten if an unanswered job has that id.
-- args: worker, jobs: list of {key, id}
-- Returns {started}: for each job true; false if it was cancelled, or put back, and must not run.
local held, started = held_by(args.worker), {}
call('PERSIST', held) -- allowed when memory is full, and so is what follows it
for n, job in ipairs(args.jobs) do
  local score, record = call('ZSCORE', held, job.key), record_of(job.id)
  if score and job.key ~= job.id then
    local pushed = read(job.key, PLACE)
    if read(job.id, PLACE).lane then
      remove(job.key, pushed)
      score = false
    else
      call('RENAME', record_of(job.key), record)
      for key, time in pairs({[held] = score, [key_of(pushed.lane, 'jobs')] = false}) do
        call('ZADD', key, time or call('ZSCORE', key, job.key), job.id)
        call('ZREM', key, job.key)
      end
    end
  end
  started[n] = score and true or false
  if score then call('HSET', record, 'status', 'running') end
end
settle()
return cmsgpack.pack({started = started})
