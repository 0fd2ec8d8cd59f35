-- The turns of clients, a part of take. Each client has a list of jobs, and each lane has two rings of clients that wait: new
-- clients, whose first turn is short, and old clients, which had a turn. An old client has a turn after every QUANTUM texts of
-- new clients, so a client that invents new names does not get ahead of all. A client that took more than its turn has a debt.
local QUANTUM, FIRST_QUANTUM, MOST_DEBT = 32, 4, 1024 -- texts
local TEXT_BYTES = 4096 -- a job counts as at least one text per 4,096 bytes, so a wrong number of texts does little harm
local GIVEN = {'job', 'lane', 'client', 'texts', 'put_ms', 'deaths', 'died', 'status', 'reply_to'}
local jobs, bytes, now = {}, 0, now_ms()

-- Give a job to the worker; return the job's texts. If it has more than max_job_bytes, give only its beginning and its size,
-- because a worker could not read the whole job, and would never answer it.
local function give(id, lane)
  local job = read(id, GIVEN)
  local numbers = (job.texts or '') .. ' ' .. (job.put_ms or '') .. ' ' .. (job.deaths or 0)
  if not (job.job and sums[job.lane] and #numbers < 64 and string.find(numbers, '^%d+ %d+ %d+$')) then
    -- Redis has lost the job's record, or another program wrote it
    if lane then call('ZREM', key_of(lane, 'jobs'), id) end
    return 0
  end
  job.key = id
  if #job.job > args.max_job_bytes then job.size_bytes, job.job = #job.job, string.sub(job.job, 1, args.head_bytes) end
  call('ZADD', held_by(args.worker), job.deaths and 0 or now + #jobs / 1024, id)
  call('HSET', record_of(id), 'worker', args.worker)
  jobs[#jobs + 1], bytes = job, bytes + #job.job
  return math.max(1, tonumber(job.texts), math.ceil(#job.job / TEXT_BYTES))
end

-- Give jobs of the first client in a ring, until `last` jobs were given in total. If room runs out, the client goes on
-- with its turn at the next take. Returns the texts given, and true if the turn is over.
local function turn(lane, ring, room, last)
  local client, credits, served = call('LINDEX', ring, 0), key_of(lane, 'credit'), 0
  local list, name = key_of(lane, 'of:' .. client), 'client:' .. client
  local credit, num_left = tonumber(call('HGET', credits, name)) or FIRST_QUANTUM, call('LLEN', list)
  credit = math.min(QUANTUM, credit) -- QUANTUM too if another program wrote nan, with which a turn would never be over
  while num_left > 0 and credit > 0 and served < room and #jobs < last and (bytes < args.max_bytes or served == 0) do
    local texts = give(call('LPOP', list), lane)
    credit, served, num_left = credit - texts, served + texts, num_left - 1
  end
  if num_left == 0 then
    call('LPOP', ring)
    call('HDEL', credits, name)
  else
    if credit <= 0 then call('LMOVE', ring, key_of(lane, 'old'), 'LEFT', 'RIGHT') end
    call('HSET', credits, name, credit > 0 and credit or math.max(credit + QUANTUM, -MOST_DEBT))
  end
  return served, credit <= 0 or num_left == 0
end

-- Give jobs of a lane until their texts fill the room, which the last job may exceed, or until max_jobs are given.
local function serve(lane, room)
  local last = #jobs + args.max_jobs
  local rings, credits, served = {key_of(lane, 'new'), key_of(lane, 'old')}, key_of(lane, 'credit'), 0
  -- texts of new clients since the last turn of an old client; another program may write a number below 0
  local owed = math.max(0, tonumber(call('HGET', credits, 'owed')) or 0)
  while served < room and #jobs < last and (bytes < args.max_bytes or served == 0) and call('EXISTS', unpack(rings)) > 0 do
    local n = owed < QUANTUM and 1 or 2
    if call('EXISTS', rings[n]) == 0 then n = 3 - n end
    local texts, is_over = turn(lane, rings[n], room - served, last)
    served = served + texts
    if n == 1 then owed = math.min(owed + texts, QUANTUM) elseif is_over then owed = 0 end
  end
  if call('EXISTS', unpack(rings)) > 0 then call('HSET', credits, 'owed', owed) else call('DEL', credits) end
end
