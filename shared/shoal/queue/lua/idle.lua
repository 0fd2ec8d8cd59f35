-- Idle workers. Redis tries the command of every worker that blocks on a stream again whenever a job comes, so a few do:
-- they listen. The others sleep, each on a list of its own, until one that has got a job hands its place on. Both have a
-- time, after which a worker that has died meanwhile is forgotten; one that sleeps looks for jobs by itself then.
-- args: consumer, max_listening, listen_ms, sleep_ms, wake (the beginning of the keys of these lists)
local SPARE_MS = 500 -- that a worker may need to begin to listen
local KEPT_MS = 60000 -- for which the keys live, at least

-- The workers that listen, those that sleep and those that are alive, from KEYS[first] on.
local function idle_at(first)
  return {listening = KEYS[first], sleeping = KEYS[first + 1], alive = KEYS[first + 2]}
end

-- True if the pool has more workers than listen: else none needs to sleep.
local function is_large(idle) return redis.call('ZCARD', idle.alive) > args.max_listening end

-- Forget workers whose time is over, and those whose time is too far ahead: Redis's clock was set back since.
local function forget(idle, now_ms)
  for _, key in ipairs({idle.listening, idle.sleeping}) do
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms) -- allowed when memory is full, and so is what follows it
    redis.call('ZREMRANGEBYSCORE', key, now_ms + args.listen_ms + args.sleep_ms, '+inf')
  end
end

local function add(key, worker, until_ms)
  redis.call('ZADD', key, until_ms, worker)
  redis.call('PEXPIRE', key, math.max(KEPT_MS, args.sleep_ms))
end

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Note that a worker is idle no longer, and wake others while too few listen.
local function hand_on(idle, worker)
  local now_ms = now()
  redis.call('ZREM', idle.sleeping, worker)
  redis.call('ZREM', idle.listening, worker)
  forget(idle, now_ms)
  while redis.call('ZCARD', idle.listening) < args.max_listening do
    local woken = redis.call('ZPOPMIN', idle.sleeping)[1]
    if not woken then return end
    add(idle.listening, woken, now_ms + args.listen_ms + SPARE_MS)
    redis.call('RPUSH', args.wake .. woken, '')
    redis.call('PEXPIRE', args.wake .. woken, math.max(KEPT_MS, args.sleep_ms))
  end
end

-- Note that a worker is idle for a time; return true if it is to sleep, and false if it is to listen.
local function rest(idle, worker)
  local now_ms = now()
  redis.call('ZREM', idle.sleeping, worker)
  redis.call('DEL', args.wake .. worker)
  forget(idle, now_ms)
  local listened = redis.call('ZREM', idle.listening, worker) == 1
  local listens = listened or redis.call('ZCARD', idle.listening) < args.max_listening
  if listens then
    add(idle.listening, worker, now_ms + args.listen_ms + SPARE_MS)
  else
    add(idle.sleeping, worker, now_ms + args.sleep_ms)
  end
  return not listens
end
