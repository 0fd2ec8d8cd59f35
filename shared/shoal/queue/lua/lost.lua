-- Find the jobs that are pending for a worker no longer: cancelled, withdrawn, or claimed by another worker.
-- KEYS: for each job its stream. args: consumer, entries
-- Returns {lost}: for each job true or false.
local lost = {}
for n, entry in ipairs(args.entries) do
  local pending = redis.pcall('XPENDING', KEYS[n], GROUP, entry, entry, 1, args.consumer)
  lost[n] = not pending.err and #pending == 0 -- without a stream or group Redis has lost it, which says nothing
end
return cmsgpack.pack({lost = lost})
