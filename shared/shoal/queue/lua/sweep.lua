-- Look whether results that count as unread, and idempotency keys, are still there: they may have expired, or been taken by
-- BLPOP. A result is looked at again when its age has doubled, an idempotency key when it has expired.
-- KEYS: the unread results and their load, then the list of each of the results, or the key. args: results, max_results,
--   result_ttl_s
-- Returns {due}: the results and keys that are to be looked at now.
local unread, now = unread_at(1), redis.call('TIME')[1]
if #args.results > 0 then keep_unread(unread, args.result_ttl_s) end
for n, result in ipairs(args.results) do
  local left_ms = redis.call('PTTL', KEYS[n + 2])
  if left_ms == -2 then
    uncount_unread(unread, result)
  else
    local left_s = math.ceil(math.max(left_ms, 0) / 1000)
    local age_s = string.sub(result, 1, 1) == '=' and left_s or args.result_ttl_s - left_s
    redis.call('ZADD', unread.results, 'XX', now + math.max(FIRST_SWEEP_S, math.min(age_s, left_s)), result)
  end
end
local num_counted = (redis.call('HGET', unread.load, 'results') or 0) + (redis.call('HGET', unread.load, 'keys') or 0)
if redis.call('ZCARD', unread.results) ~= num_counted then redis.call('DEL', unread.results, unread.load) end
return cmsgpack.pack({due = redis.call('ZRANGEBYSCORE', unread.results, '-inf', now, 'LIMIT', 0, args.max_results)})
