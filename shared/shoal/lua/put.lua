-- Add jobs to a lane, all of them or, where the lane would grow past its limit, none.
-- KEYS: lane, then the record of each submitted job (none for jobs that have a reply address)
-- ARGV: most jobs in the lane, seconds a record lives, then the bytes of each job
-- Returns -1, or the number of jobs in the lane when it is too full.
local backlog = redis.call('XLEN', KEYS[1])
if backlog + #ARGV - 2 > tonumber(ARGV[1]) then return backlog end
for i = 3, #ARGV do
  local record = KEYS[i - 1]
  if not record or redis.call('EXISTS', record) == 0 then
    local entry = redis.call('XADD', KEYS[1], '*', 'job', ARGV[i])
    if record then
      redis.call('HSET', record, 'status', 'queued', 'lane', KEYS[1], 'entry', entry)
      redis.call('EXPIRE', record, ARGV[2])
    end
  end
end
return -1
