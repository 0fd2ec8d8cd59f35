-- Cancel a submitted job that no worker has started.
-- KEYS: record, result list, lane of the record. ARGV: group, seconds a result lives, the reply that says so
-- Returns the status the job now has, or false for an unknown job.
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'queued' then return status end
local entry = redis.call('HGET', KEYS[1], 'entry')
redis.call('XACK', KEYS[3], ARGV[1], entry)
redis.call('XDEL', KEYS[3], entry)
redis.call('RPUSH', KEYS[2], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[2])
redis.call('HSET', KEYS[1], 'status', 'cancelled')
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 'cancelled'
