-- Acknowledge jobs and write their replies, each together or not at all: of two workers that ran the same job, only the
-- first to finish is heard.
-- KEYS: for each job its lane, the list its reply goes to, its record
-- ARGV: group, seconds a reply lives, then for each job its entry, reply, status ('' for a job without record), timings
-- Returns how many replies were written.
local written = 0
for i = 0, #KEYS / 3 - 1 do
  local lane, list, record = KEYS[3 * i + 1], KEYS[3 * i + 2], KEYS[3 * i + 3]
  local entry, reply, status, timings = ARGV[4 * i + 3], ARGV[4 * i + 4], ARGV[4 * i + 5], ARGV[4 * i + 6]
  if redis.call('XACK', lane, ARGV[1], entry) == 1 then
    redis.call('XDEL', lane, entry)
    redis.call('RPUSH', list, reply)
    redis.call('EXPIRE', list, ARGV[2])
    if status ~= '' then
      redis.call('HSET', record, 'status', status, 'timings', timings)
      redis.call('EXPIRE', record, ARGV[2])
    end
    written = written + 1
  end
end
return written
