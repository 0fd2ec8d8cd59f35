-- Say that a worker is alive, and what it serves.
-- KEYS: ids of workers, what the worker says of itself. ARGV: its id, what it says, milliseconds that this lives
redis.call('PERSIST', KEYS[2]) -- allowed when memory is full, and what follows a script's first write is too
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
