-- Let a result that was read expire soon and its record too, unless an idempotency key is used for the job. Count it as
-- unread no longer, and note in its record that it was read.
-- KEYS: the unread results and their load, the result, the record. args: id, num_bytes (of the reply), ttl_s
local unread, result, record = unread_at(1), KEYS[3], KEYS[4]
uncount_unread(unread, name_of_unread(args.id, args.num_bytes, client_of(record)))
if redis.call('PTTL', result) > args.ttl_s * 1000 then
  redis.call('EXPIRE', result, args.ttl_s) -- allowed when memory is full, and what follows a script's first write is too
  if redis.call('EXISTS', record) == 1 then
    redis.call('HSET', record, 'is_read', 1)
    if redis.call('HEXISTS', record, 'lives') == 0 then redis.call('EXPIRE', record, args.ttl_s) end
  end
end
