-- Look whether results that count as unread are still there: they may have expired, or been taken by BLPOP. A result is
-- looked at again when its age has doubled.
-- KEYS: the unread results and their load, then the list of each of the results. args: results, max_results, result_ttl_s
-- Returns {due}: the results that are to be looked at now.
local unread, now = unread_at(1), redis.call('TIME')[1]
if #args.results > 0 then keep_unread(unread, args.result_ttl_s) end
for n, result in ipairs(args.results) do
  local left_ms = redis.call('PTTL', KEYS[n + 2])
  if left_ms == -2 then
    uncount_unread(unread, result)
  else
    local left_s = math.ceil(math.max(left_ms, 0) / 1000)
    local next_s = math.max(FIRST_SWEEP_S, math.min(args.result_ttl_s - left_s, left_s))
    redis.call('ZADD', unread.results, 'XX', now + next_s, result)
  end
end
local num_counted = tonumber(redis.call('HGET', unread.load, 'results') or 0)
if redis.call('ZCARD', unread.results) ~= num_counted then redis.call('DEL', unread.results, unread.load) end
return cmsgpack.pack({due = redis.call('ZRANGEBYSCORE', unread.results, '-inf', now, 'LIMIT', 0, args.max_results)})
