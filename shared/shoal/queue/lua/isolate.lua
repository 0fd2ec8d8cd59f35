-- Remember which suspect a worker reads or runs, or that none of its jobs can end it.
-- KEYS: where it is remembered. args: stream, entry, ttl_s
redis.call('PERSIST', KEYS[1]) -- allowed when memory is full, and what follows a script's first write is too
redis.call('SET', KEYS[1], cmsgpack.pack({stream = args.stream, entry = args.entry}), 'EX', args.ttl_s)
