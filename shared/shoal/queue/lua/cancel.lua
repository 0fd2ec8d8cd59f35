-- Cancel a submitted job that is not answered; a worker that has it notices that it is gone.
-- KEYS: those of all lanes, the unread results and their load, the record, the result list.
-- args: lanes, id (of the job), result_ttl_s, reply (the bytes of the reply with the error)
-- Returns {status}: the one that the job now has, or {is_unknown}. A running job that was put by plain XADD goes on,
--   because its record does not have its entry.
local record, result = KEYS[#KEYS - 1], KEYS[#KEYS]
local fields = redis.call('HMGET', record, 'status', 'stream', 'entry', 'client')
local status, stream, entry, client = unpack(fields)
if not status then return cmsgpack.pack({is_unknown = true}) end
if status ~= 'queued' and not (status == 'running' and entry) then return cmsgpack.pack({status = status}) end
redis.call('PERSIST', record) -- allowed when memory is full, and what follows a script's first write is too
for _, lane in pairs(lanes_by_name()) do
  if stream == lane.front or stream == lane.overflow then take_back(lane, stream, entry, args.id) end
end
redis.call('RPUSH', result, args.reply)
redis.call('EXPIRE', result, args.result_ttl_s)
count_unread(unread_at(#KEYS - 3), args.id, client or '', args.reply, args.result_ttl_s)
conclude(record, 'cancelled', args.result_ttl_s, '')
return cmsgpack.pack({status = 'cancelled'})
