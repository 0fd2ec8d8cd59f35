-- Mark submitted jobs as running.
-- KEYS: their records
-- Returns for each 1, or 0 if it was cancelled: then it must not run.
local started = {}
for i, record in ipairs(KEYS) do
  local status = redis.pcall('HGET', record, 'status') -- a table if something else has the name of the record
  started[i] = status == 'cancelled' and 0 or 1
  if not status or status == 'queued' then -- else another worker has it or had it, and may have answered
    redis.call('PERSIST', record) -- allowed when memory is full, and what follows a script's first write is too
    redis.call('HSET', record, 'status', 'running')
  end
end
return started
