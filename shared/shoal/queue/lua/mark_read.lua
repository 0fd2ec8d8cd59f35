-- Let a result that was read expire soon, and note in its record that it was read.
-- KEYS: the result, the record. args: ttl_s
local result, record = KEYS[1], KEYS[2]
if redis.call('PTTL', result) > args.ttl_s * 1000 then
  redis.call('EXPIRE', result, args.ttl_s) -- allowed when memory is full, and what follows a script's first write is too
  if redis.call('EXISTS', record) == 1 then redis.call('HSET', record, 'is_read', 1) end
end
