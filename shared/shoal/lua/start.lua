-- Mark submitted jobs as running.
-- KEYS: their records. ARGV: seconds a record lives
-- Returns for each 1, or 0 if it was cancelled: then it must not run.
local started = {}
for i, record in ipairs(KEYS) do
  if redis.call('HGET', record, 'status') == 'cancelled' then
    started[i] = 0
  else
    redis.call('HSET', record, 'status', 'running')
    redis.call('EXPIRE', record, ARGV[1])
    started[i] = 1
  end
end
return started
