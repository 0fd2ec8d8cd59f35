-- Cancel a submitted job that no worker has started.
-- KEYS: record, result list, stream of the job, load of its lane
-- ARGV: group, seconds a result lives, the reply that says so
-- Returns the status the job now has, or false for an unknown job.
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'queued' then return status end
local entry = redis.call('HGET', KEYS[1], 'entry')
redis.call('XACK', KEYS[3], ARGV[1], entry)
redis.call('RPUSH', KEYS[2], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[2])
conclude(KEYS[1], 'cancelled', ARGV[2], '')
release(KEYS[3], KEYS[4], entry)
return 'cancelled'
