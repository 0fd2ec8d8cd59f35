-- The second part of the scripts that move jobs. An unanswered job has its record, with the lane and the worker that holds
-- it, and is in one place: in the list of its client, in that of the suspects, or with a worker.
local SUSPECTS, HOLDERS = ROOT .. 'suspects', ROOT .. 'holders'
local UNANSWERED = {'job', 'lane', 'texts', 'put_ms', 'worker', 'deaths', 'died'} -- fields of no answered job

local function key_of(lane, what) return ROOT .. 'lane:' .. lane .. ':' .. what end

-- The jobs that a worker holds, by the time of their delivery; a suspect has none, and so is the first.
local function held_by(worker) return ROOT .. 'held:' .. worker end

local function suspect_of(worker) return call('ZRANGEBYSCORE', held_by(worker), 0, 0)[1] end

-- Wake one idle worker, which wakes the next if it leaves jobs behind.
local function wake(lane)
  local marker = key_of(lane, 'wake')
  if call('EXISTS', marker) == 0 then call('RPUSH', marker, '') end
end

-- Add to the load of a lane and of a client; all is written by `settle`, once for each client.
local sums = {}
local function count(lane, client, texts, bytes)
  local name = lane .. ' ' .. client
  local sum = sums[name] or {lane = lane, client = client, texts = 0, bytes = 0}
  sums[name], sum.texts, sum.bytes = sum, sum.texts + texts, sum.bytes + bytes
end

local function settle()
  for _, sum in pairs(sums) do
    local load = key_of(sum.lane, 'load')
    for _, what in ipairs({'texts', 'bytes'}) do
      lower(load, what, -sum[what])
      lower(load, what .. ':' .. sum.client, -sum[what])
    end
    if call('EXISTS', key_of(sum.lane, 'jobs')) == 0 then call('DEL', load) end -- of jobs that Redis has lost
  end
end

-- Let a job wait behind the others of its client, or before them. A client without waiting jobs joins the new ones.
local function wait(lane, client, id, is_first)
  if call(is_first and 'LPUSH' or 'RPUSH', key_of(lane, 'of:' .. client), id) == 1 then
    call('RPUSH', key_of(lane, 'new'), client)
  end
  wake(lane)
end

local function stop_waiting(lane, client, id)
  local list = key_of(lane, 'of:' .. client)
  if call('LREM', list, 1, id) == 0 then return call('LREM', SUSPECTS, 1, id) end
  if call('EXISTS', list) == 1 then return end
  call('HDEL', key_of(lane, 'credit'), 'client:' .. client)
  if call('LREM', key_of(lane, 'new'), 1, client) == 0 then call('LREM', key_of(lane, 'old'), 1, client) end
end

-- The texts of a job whose producer does not say their number.
local function guess_of_texts(bytes) return math.ceil(#bytes / 1024) end

-- Add a job to a lane; `more` are the fields of its record that not every job has.
local function enqueue(lane, client, id, texts, bytes, more)
  local now = now_ms()
  call('HSET', record_of(id), 'job', bytes, 'lane', lane, 'client', client, 'texts', texts, 'put_ms', now, unpack(more))
  call('ZADD', key_of(lane, 'jobs'), now, id)
  count(lane, client, texts, #bytes)
  wait(lane, client, id)
end

-- Take an unanswered job out of its place and its lane, and forget it unless its status is kept.
-- Returns its client and status; nil if there is no such job.
local function remove(id)
  local record = record_of(id)
  local lane, client, texts, worker, status = unpack(call('HMGET', record, 'lane', 'client', 'texts', 'worker', 'status'))
  if not lane then return nil end
  redis.pcall('ZREM', key_of(lane, 'jobs'), id) -- allowed when memory is full, and so is what follows it
  if worker then call('ZREM', held_by(worker), id) else stop_waiting(lane, client, id) end
  count(lane, client, 0 - texts, 0 - call('HSTRLEN', record, 'job'))
  if status then call('HDEL', record, unpack(UNANSWERED)) else call('DEL', record) end
  return client, status
end

-- Let a job that a worker held wait again, before the others or behind them; a suspect waits apart.
-- Returns true if the worker held it.
local function put_back(worker, id, is_first, has_died)
  if call('ZREM', held_by(worker), id) == 0 then return false end
  local record = record_of(id)
  local lane, client, deaths, status = unpack(call('HMGET', record, 'lane', 'client', 'deaths', 'status'))
  if not lane then return false end
  call('HDEL', record, 'worker')
  if status then call('HSET', record, 'status', 'queued') end
  if has_died then
    deaths = call('HINCRBY', record, 'deaths', 1)
    call('HSET', record, 'died', worker)
  end
  if not deaths then
    wait(lane, client, id, is_first)
  else
    call(is_first and 'LPUSH' or 'RPUSH', SUSPECTS, id)
    wake('bulk') -- where busy workers expect no job
  end
  return true
end

