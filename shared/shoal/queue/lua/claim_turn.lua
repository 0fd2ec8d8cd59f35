-- Take the turn to look for jobs of dead workers, unless a worker took it within the time.
-- KEYS: the turn.
-- args: worker, every_ms
-- Returns {is_taken}: true if this worker is to look.
local turn = KEYS[1]
local left_ms = redis.call('PTTL', turn) -- more than every_ms if Redis's clock was set back since
if left_ms > 0 and left_ms <= args.every_ms then return cmsgpack.pack({is_taken = false}) end
redis.call('DEL', turn) -- allowed when memory is full, and what follows a script's first write is too
redis.call('SET', turn, args.worker, 'PX', args.every_ms)
return cmsgpack.pack({is_taken = true})
