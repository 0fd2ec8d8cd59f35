-- Mark submitted jobs as running.
-- KEYS: their records.
-- Returns {started}: for each job true, or false if it was cancelled and must not run.
local started = {}
for n, record in ipairs(KEYS) do
  local status = redis.pcall('HGET', record, 'status') -- a table if something else has the name of the record
  started[n] = status ~= 'cancelled'
  if not status or status == 'queued' then -- else another worker has it or had it, and may have answered
    redis.call('PERSIST', record) -- allowed when memory is full, and what follows a script's first write is too
    redis.call('HSET', record, 'status', 'running')
  end
end
return cmsgpack.pack({started = started})
