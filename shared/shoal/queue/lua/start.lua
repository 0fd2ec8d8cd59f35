-- Mark jobs whose status is kept as running, if the worker still holds them. A job that was pushed without a script gets the
-- id in its bytes in place of its number. It is removed if an unanswered job has this id.
-- args: worker, jobs: list of {key, id}
-- Returns {started}: true for each job that may run; false if the job was cancelled, put back or removed, or its record was
-- removed.
local held, started = held_by(args.worker), {}
call('PERSIST', held) -- Redis allows this even if memory is full, and then later writes too
for n, job in ipairs(args.jobs) do
  local given, record = read(job.key, PLACE), record_of(job.id)
  local score = sums[given.lane] and call('ZSCORE', held, job.key)
  if score and job.key ~= job.id then
    if read(job.id, PLACE).lane then
      remove(job.key, given)
      score = false
    else
      call('RENAME', record_of(job.key), record)
      for key, time in pairs({[held] = score, [key_of(given.lane, 'jobs')] = false}) do
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
