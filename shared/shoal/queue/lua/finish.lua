-- The part of scripts that answer jobs: the end of a job whose status is kept.

-- Tell the processes that wait for the result of a job, at the addresses that its record names.
local function tell_watchers(id, ttl_s)
  for address in string.gmatch(call('HGET', record_of(id), 'watchers') or '', '%S+') do
    redis.pcall('XADD', ROOT .. 'replies:' .. address, '*', 'answered', id)
    call('EXPIRE', ROOT .. 'replies:' .. address, ttl_s)
  end
end

-- Set the final status of a job, and let its record expire.
local function conclude(id, status, result_ttl_s, timings)
  local record = record_of(id)
  local kept = redis.pcall('HSET', record, 'status', status, 'timings', timings)
  if type(kept) == 'table' then return end -- something else has the name of the record
  call('EXPIRE', record, math.max(result_ttl_s, call('HGET', record, 'lives') or 0))
  tell_watchers(id, result_ttl_s)
end

