-- Lanes, a part of scripts that move jobs. An unanswered job has a record, with its lane and the worker that holds it. Its id
-- is in one place: in the list of its client, in the list of suspects, or in the set of jobs that a worker holds.
local SUSPECTS, HOLDERS = ROOT .. 'suspects', ROOT .. 'holders'

local function key_of(lane, what) return ROOT .. 'lane:' .. lane .. ':' .. what end

-- Wake one idle worker. If it leaves jobs behind, it wakes the next worker.
local function wake(lane)
  if call('EXISTS', key_of(lane, 'wake')) == 0 then call('RPUSH', key_of(lane, 'wake'), '') end
end

-- Guess a job's number of texts, if its producer does not give the number.
local function guess_of_texts(bytes) return math.ceil(#bytes / 1024) end

-- Add numbers to the sums of a lane, which `settle` adds to the load in Redis.
local sums = {interactive = {}, bulk = {}}
local function count(lane, client, jobs, texts, bytes)
  local sum, amounts = sums[lane] or {}, {texts = texts, bytes = bytes, ['jobs:' .. client] = jobs}
  amounts['texts:' .. client], amounts['bytes:' .. client] = texts, bytes
  for field, amount in pairs(amounts) do sum[field] = (sum[field] or 0) + amount end
end

local function settle()
  for lane, sum in pairs(sums) do
    for field, amount in pairs(sum) do add(key_of(lane, 'load'), field, amount) end
    if next(sum) and call('EXISTS', key_of(lane, 'jobs')) == 0 then call('DEL', key_of(lane, 'load')) end -- Redis lost the jobs
  end
end

-- Put a job at the end of its client's list, or at its beginning. A client without waiting jobs joins the ring of new clients.
local function wait(lane, client, id, is_first)
  local num = call(is_first and 'LPUSH' or 'RPUSH', key_of(lane, 'of:' .. client), id)
  if num == 1 then call('RPUSH', key_of(lane, 'new'), client) end
end

-- Add a job to a lane; `more` is a flat list of more fields of its record.
local function enqueue(lane, client, id, texts, bytes, now, more)
  call('HSET', record_of(id), 'job', bytes, 'lane', lane, 'client', client, 'texts', texts, 'put_ms', now, unpack(more))
  call('ZADD', key_of(lane, 'jobs'), now, id)
  wait(lane, client, id)
end
