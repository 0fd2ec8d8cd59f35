-- Announce that a worker is alive, with its heartbeat.
-- KEYS: ids of workers, its heartbeat. ARGV: one msgpack map {worker, about (the bytes of the heartbeat), ttl_ms}
local args = cmsgpack.unpack(ARGV[1])
redis.call('PERSIST', KEYS[2]) -- allowed when memory is full, and what follows a script's first write is too
redis.call('SADD', KEYS[1], args.worker)
redis.call('SET', KEYS[2], args.about, 'PX', args.ttl_ms)
