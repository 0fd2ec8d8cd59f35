-- Mark jobs with a record as running, those that are still pending for the worker that took them.
-- KEYS: for each job its stream and its record. args: consumer, entries
-- Returns {started}: for each job true, or false if it was cancelled or is another worker's by now, and must not run.
--   A record that was marked then would never end: another worker may have answered the job long ago.
local started = {}
for n, entry in ipairs(args.entries) do
  local stream, record = KEYS[2 * n - 1], KEYS[2 * n]
  local pending = redis.pcall('XPENDING', stream, GROUP, entry, entry, 1, args.consumer)
  local status = redis.pcall('HGET', record, 'status') -- a table if something else has the name of the record
  started[n] = not pending.err and #pending == 1 and status ~= 'cancelled'
  if started[n] and (not status or status == 'queued') then
    redis.call('PERSIST', record) -- allowed when memory is full, and what follows a script's first write is too
    redis.call('HSET', record, 'status', 'running')
    redis.call('EXPIRE', record, RECORD_TTL_S)
  end
end
return cmsgpack.pack({started = started})
