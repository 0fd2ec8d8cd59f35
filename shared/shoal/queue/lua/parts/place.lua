-- The places of jobs, a part of scripts that take jobs out of places. A worker's jobs are in a sorted set, with
-- the times of delivery as scores. The score of a suspect is 0, so it comes first.
local PLACE = {'lane', 'client', 'texts', 'worker', 'status', 'reply_to', 'deaths'}

local function held_by(worker) return ROOT .. 'held:' .. worker end

local function suspect_of(worker) return call('ZRANGEBYSCORE', held_by(worker), 0, 0)[1] end

local function stop_waiting(lane, client, id)
  local list = key_of(lane, 'of:' .. client)
  if call('LREM', list, 1, id) == 0 then return call('LREM', SUSPECTS, 1, id) end
  if call('EXISTS', list) == 1 then return end
  call('HDEL', key_of(lane, 'credit'), 'client:' .. client)
  if call('LREM', key_of(lane, 'new'), 1, client) == 0 then call('LREM', key_of(lane, 'old'), 1, client) end
end

-- Remove an unanswered job from its place and lane. If it has a status, its record stays, with the fields of an answered job.
local function remove(id, job)
  local record = record_of(id)
  redis.pcall('ZREM', key_of(job.lane, 'jobs'), id) -- Redis allows this even if memory is full, and then later writes too
  if job.worker then call('ZREM', held_by(job.worker), id) else stop_waiting(job.lane, job.client, id) end
  count(job.lane, job.client, -1, -(tonumber(job.texts) or 0), 0 - call('HSTRLEN', record, 'job'))
  if not job.status then return call('DEL', record) end
  call('HDEL', record, 'job', 'lane', 'texts', 'put_ms', 'worker', 'deaths', 'died')
end

-- Move a job from its worker to the beginning or the end of its client's list, or of the list of suspects. Returns true if
-- the worker held the job.
local function put_back(worker, id, is_first, has_died)
  local record, job = record_of(id), read(id, PLACE)
  if call('ZREM', held_by(worker), id) == 0 or not sums[job.lane] then return false end
  call('HDEL', record, 'worker')
  if job.status then call('HSET', record, 'status', 'queued') end
  if has_died then
    job.deaths = (tonumber(job.deaths) or 0) + 1
    call('HSET', record, 'died', worker, 'deaths', job.deaths)
  end
  if job.deaths then call(is_first and 'LPUSH' or 'RPUSH', SUSPECTS, id) else wait(job.lane, job.client, id, is_first) end
  wake(job.deaths and 'bulk' or job.lane) -- busy workers, which take no suspects, do not watch the marker of bulk
  return true
end
