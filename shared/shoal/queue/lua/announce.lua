-- Announce that a worker is alive, and forget workers whose time is over. After Redis's clock was set back, or when a
-- Redis whose clock is behind took over, the times of all are too far away: none counts as alive for longer than this one.
-- KEYS: ids of workers by the time until which they count as alive, the heartbeat of this one.
-- args: worker, alive_ms, kept_ms (how long the heartbeat is kept), about (its bytes, if it is to be written)
-- Returns {has_about}: true if Redis has the heartbeat.
local alive, heartbeat = KEYS[1], KEYS[2]
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local until_ms = now_ms + args.alive_ms
redis.call('PEXPIRE', alive, args.kept_ms) -- allowed when memory is full, and what follows a script's first write is too
redis.call('ZADD', alive, until_ms, args.worker)
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', alive, '(' .. string.format('%.0f', until_ms), '+inf')) do
  redis.call('ZADD', alive, until_ms, worker)
end
redis.call('ZREMRANGEBYSCORE', alive, '-inf', now_ms)
redis.call('PEXPIRE', alive, args.kept_ms)
if args.about then redis.call('SET', heartbeat, args.about, 'PX', args.kept_ms) end
return cmsgpack.pack({has_about = redis.call('EXISTS', heartbeat) == 1})
