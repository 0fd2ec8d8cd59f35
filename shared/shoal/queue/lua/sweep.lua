-- Look whether results that count as unread, and idempotency keys, are still there: they may have expired, or been taken by
-- BLPOP. A result is looked at again when its age has doubled, an idempotency key when it has expired.
-- args: results (members of the set, to look at), max_results, result_ttl_s
-- Returns {due}: the results and keys that are to be looked at now.
local now = call('TIME')[1]
if #args.results > 0 then keep_unread(args.result_ttl_s) end
for _, result in ipairs(args.results) do
  local name = string.match(result, '^%S+')
  local is_key = string.sub(name, 1, 1) == '='
  local left_ms = call('PTTL', is_key and ROOT .. 'once:' .. string.sub(name, 2) or ROOT .. 'result:' .. name)
  if left_ms == -2 then
    uncount_unread(result)
  else
    local left_s = math.ceil(math.max(left_ms, 0) / 1000)
    local age_s = is_key and left_s or args.result_ttl_s - left_s
    call('ZADD', UNREAD, 'XX', now + math.max(FIRST_SWEEP_S, math.min(age_s, left_s)), result)
  end
end
local num_counted = (call('HGET', UNREAD_LOAD, 'results') or 0) + (call('HGET', UNREAD_LOAD, 'keys') or 0)
if call('ZCARD', UNREAD) ~= num_counted then call('DEL', UNREAD, UNREAD_LOAD) end
return cmsgpack.pack({due = call('ZRANGEBYSCORE', UNREAD, '-inf', now, 'LIMIT', 0, args.max_results)})
