-- Cancel a job whose status is kept and that is not answered; a worker that has it notices that it is gone.
-- args: id (of the job), result_ttl_s (of the reply, which has the error; that of the workers if it is left out)
-- Returns {status}: the one that the job now has, or {is_unknown}.
args.result_ttl_s = args.result_ttl_s or tonumber(call('HGET', ROOT .. 'limits', 'result_ttl_s') or 3600)
local wrong = fault_of_root() or fault('', args, 'id', 'name') or fault('', args, 'result_ttl_s', 'count')
if wrong then return redis.error_reply('ERR ' .. wrong) end

local status, lane, reply_to = unpack(call('HMGET', record_of(args.id), 'status', 'lane', 'reply_to'))
if not status then return cmsgpack.pack({is_unknown = true}) end
if not lane then return cmsgpack.pack({status = status}) end
local address = ROOT .. (reply_to and 'replies:' .. reply_to or 'result:' .. args.id)
wrong = fault_of_value(reply_to and 'XLEN' or 'LLEN', address)
  or not reply_to and (fault_of_value('ZCARD', UNREAD) or fault_of_value('HEXISTS', UNREAD_LOAD, ''))
if wrong then return redis.error_reply('ERR ' .. wrong) end

local client = remove(args.id)
settle()
local failure = {code = 'cancelled', message = 'job ' .. args.id .. ' was cancelled'}
local reply = cmsgpack.pack({v = 1, id = args.id, status = 'cancelled', error = failure})
if reply_to then
  call('XADD', address, '*', 'reply', reply)
else
  call('RPUSH', address, reply)
  count_unread(args.id, client, reply, args.result_ttl_s)
end
call('EXPIRE', address, args.result_ttl_s)
conclude(args.id, 'cancelled', args.result_ttl_s, '')
return cmsgpack.pack({status = 'cancelled'})
