-- Let a result that was read expire soon and its record too, unless an idempotency key is used for the job. Count it as
-- unread no longer, and note in its record that it was read.
-- args: id, num_bytes (of the reply), ttl_s
local result, record = ROOT .. 'result:' .. args.id, record_of(args.id)
local client = redis.pcall('HGET', record, 'client') -- a table if something else has the name of the record
uncount_unread(name_of_unread(args.id, args.num_bytes, type(client) == 'string' and client or ''))
if call('PTTL', result) > args.ttl_s * 1000 then
  call('EXPIRE', result, args.ttl_s) -- allowed when memory is full, and what follows a script's first write is too
  if call('EXISTS', record) == 1 then
    call('HSET', record, 'is_read', 1)
    if call('HEXISTS', record, 'lives') == 0 then call('EXPIRE', record, args.ttl_s) end
  end
end
