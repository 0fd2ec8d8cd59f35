-- Stop counting results and idempotency keys that have expired, or that a client popped. A result that still exists is
-- looked at again when its age has doubled, and when it expires; an idempotency key, when it expires or earlier.
-- Returns {more}: true if more members may be due.
local MOST, result_ttl_s = 500, limits_of('result_ttl_s').result_ttl_s -- checking MOST members takes half a millisecond
local now = call('TIME')[1]
local due = call('ZRANGEBYSCORE', UNREAD, '-inf', now, 'LIMIT', 0, MOST)
call('PERSIST', UNREAD) -- Redis allows this even if memory is full, and then later writes too
for _, member in ipairs(due) do
  local left_ms = call('PTTL', ROOT .. string.match(member, '^%S*'))
  local age_s = math.abs(result_ttl_s - left_ms / 1000)
  if left_ms == -2 then
    forget(member)
  else
    call('ZADD', UNREAD, now + math.max(FIRST_LOOK_S, math.min(age_s, left_ms / 1000)), member)
  end
end
local load = call('HMGET', UNREAD_LOAD, 'result', 'once')
if call('ZCARD', UNREAD) ~= (tonumber(load[1]) or 0) + (tonumber(load[2]) or 0) then call('DEL', UNREAD, UNREAD_LOAD) end -- Redis has lost a key
return cmsgpack.pack({more = #due == MOST})
