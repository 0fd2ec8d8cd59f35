-- Announce that a worker is alive, and forget workers whose time is over. After Redis's clock was set back, or when a
-- Redis whose clock is behind took over, the times of all are too far away: none counts as alive for longer than this one.
-- KEYS: ids of workers by the time until which they count as alive, the heartbeat of this one, and, if that is known, the
-- names of the workers that share its processors, by the same time.
-- args: worker, alive_ms, kept_ms (how long the heartbeat is kept), about (its bytes, if it is to be written), name (that
-- of this worker among those that share its processors), num_known (as many of these the worker knows)
-- Returns {has_about, num_sharing, sharing}: true if Redis has the heartbeat; the number of workers that share the
-- processors, and their names if the worker knows another number.
local alive, heartbeat, neighbours = KEYS[1], KEYS[2], KEYS[3]
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local until_ms = now_ms + args.alive_ms

-- Add a living worker to a sorted set, and take those out whose time is over.
local function add(key, member)
  redis.call('ZADD', key, until_ms, member)
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. string.format('%.0f', until_ms), '+inf')) do
    redis.call('ZADD', key, until_ms, other)
  end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms)
  redis.call('PEXPIRE', key, args.kept_ms)
end

redis.call('PEXPIRE', alive, args.kept_ms) -- allowed when memory is full, and what follows a script's first write is too
add(alive, args.worker)
local answer = {num_sharing = 0}
if neighbours then
  add(neighbours, args.name)
  answer.num_sharing = redis.call('ZCARD', neighbours)
  if answer.num_sharing ~= args.num_known then
    answer.sharing = redis.call('ZRANGEBYSCORE', neighbours, '-inf', '+inf')
  end
end
if args.about then redis.call('SET', heartbeat, args.about, 'PX', args.kept_ms) end
answer.has_about = redis.call('EXISTS', heartbeat) == 1
return cmsgpack.pack(answer)
