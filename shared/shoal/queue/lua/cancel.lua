-- Cancel a job with a record that is not answered; a worker that has it notices that it is gone.
-- KEYS: those of all lanes, then in any order the unread results, their load, the record, and where the reply goes: the
--   result list, or the replies of the address that the record has.
-- args: version, lanes, id (of the job), result_ttl_s, reply (the bytes of the reply with the error)
-- Returns {status}: the one that the job now has, or {is_unknown}. A running job that was put by plain XADD goes on,
--   because its record does not have its entry.
local wrong = fault_of_version() or fault('', args, 'lanes', 'list') or fault('', args, 'id', 'name')
  or fault('', args, 'result_ttl_s', 'count') or fault('', args, 'reply', 'bytes')
for n in ipairs(wrong and {} or args.lanes) do
  wrong = wrong or fault('lanes, number ', args.lanes, n, 'name') or fault_of_lane((n - 1) * #LANE_KEYS + 1)
end
local record = not wrong and root() .. ':job:' .. args.id
local unread = {results = root() .. ':unread', load = root() .. ':unread:load'}
wrong = wrong or fault_of_key(unread.results) or fault_of_key(unread.load) or fault_of_key(record)
if wrong then return redis.error_reply('ERR ' .. wrong) end

local fields = redis.call('HMGET', record, 'status', 'stream', 'entry', 'reply_to', 'client')
local status, stream, entry, reply_to, client = unpack(fields)
if not status then return cmsgpack.pack({is_unknown = true}) end
if status ~= 'queued' and not (status == 'running' and entry) then return cmsgpack.pack({status = status}) end
local lane
for n = 1, #args.lanes do
  local given = lane_at((n - 1) * #LANE_KEYS + 1)
  if stream == given.front or stream == given.overflow then lane = given end
end
local address = root() .. (reply_to and ':replies:' .. reply_to or ':result:' .. args.id)
wrong = stream and not lane and 'the job is in ' .. stream .. ': give the keys of its lane'
  or fault_of_key(address) or reply_to and fault_of_value('XLEN', address) or fault_of_value('HGET', unread.load, '')
  or not reply_to and fault_of_value('LINDEX', address, 0) or fault_of_value('ZCARD', unread.results)
if wrong then return redis.error_reply('ERR ' .. wrong) end

redis.call('PERSIST', record) -- allowed when memory is full, and what follows a script's first write is too
if lane then take_back(lane, stream, entry, args.id) end
if reply_to then
  redis.call('XADD', address, '*', 'reply', args.reply)
else
  redis.call('RPUSH', address, args.reply)
  count_unread(unread, args.id, client or '', args.reply, args.result_ttl_s)
end
redis.call('EXPIRE', address, args.result_ttl_s)
conclude(record, 'cancelled', args.result_ttl_s, '')
return cmsgpack.pack({status = 'cancelled'})
