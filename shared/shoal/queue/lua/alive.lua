-- Find the workers that are alive by the clock of Redis.
-- KEYS: ids of workers by the time until which they count as alive.
-- Returns {workers}: their ids.
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
return cmsgpack.pack({workers = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now_ms), '+inf')})
