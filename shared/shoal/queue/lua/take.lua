-- Give waiting jobs to a worker.
-- args: worker, room: list of {lane, texts} (lanes in their order, and the texts that the worker has room for), max_jobs (of
--   each lane), max_bytes, max_job_bytes, head_bytes, takes_suspects (true if a suspect would run alone in the worker)
-- Returns {jobs, more_suspects}: list of {key, job (its bytes), lane, client, texts, put_ms, deaths, died, status, reply_to,
--   size_bytes}. A lane gives jobs until it has given max_jobs or the texts reach the room; all lanes, until the jobs' bytes
--   reach max_bytes. The job that exceeds the room or the bytes is still given. A suspect is given alone, because it may end
--   the worker, which gets no other job until the suspect is answered. more_suspects is true if any suspects wait.

-- The turns of clients. Each client has a list of jobs, and each lane has two rings of clients that wait: new
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

-- Pushed jobs
local MOST_ADMITTED = 256 -- pushed jobs that wait in a lane; further ones stay in the program's list, and fill no lane for others

-- Add jobs that programs have pushed without a script to the lane, all for the client ''. Their bytes are not read here: a
-- number is their id until a worker has read them. The first commands fail if another program wrote a key, so no job is lost.
local function admit(lane)
  local pushed = ROOT .. 'lane:' .. lane
  local num = math.min(call('LLEN', pushed), MOST_ADMITTED - call('LLEN', key_of(lane, 'of:')))
  if num <= 0 then return end
  call('ZCARD', key_of(lane, 'jobs'))
  call('LLEN', key_of(lane, 'new'))
  for _ = 1, num do
    local id
    repeat id = '+' .. call('INCR', ROOT .. 'lane:pushed') until call('EXISTS', record_of(id)) == 0
    local packed = call('LPOP', pushed)
    local texts = guess_of_texts(packed)
    enqueue(lane, '', id, texts, packed, now, {})
    count(lane, '', 1, texts, #packed)
  end
end

-- Do a step for a lane. If another program wrote one of the lane's keys, do nothing: the other lanes go on.
local function attempt(step, ...)
  local is_done, fault = pcall(step, ...)
  local message = type(fault) == 'table' and fault.err or fault
  for _, words in ipairs({'WRONGTYPE', 'not an integer', 'overflow'}) do
    is_done = is_done or string.find(message, words, 1, true)
  end
  if is_done then return end
  error(fault, 0)
end

local has_suspect, has_suspects = suspect_of(args.worker), call('EXISTS', SUSPECTS) == 1
for _, wanted in ipairs(args.room) do call('DEL', key_of(wanted.lane, 'wake')) end -- allowed even if memory is full
if args.takes_suspects and not has_suspect and has_suspects then
  give(call('LPOP', SUSPECTS))
elseif not has_suspect then
  for _, wanted in ipairs(args.room) do
    attempt(admit, wanted.lane)
    attempt(serve, wanted.lane, wanted.texts)
  end
end
settle()
if #jobs > 0 then call('SADD', HOLDERS, args.worker) end
for _, wanted in ipairs(args.room) do
  local lists = {key_of(wanted.lane, 'new'), key_of(wanted.lane, 'old'), ROOT .. 'lane:' .. wanted.lane}
  if call('EXISTS', unpack(lists)) > 0 then wake(wanted.lane) end
end
local more_suspects = call('EXISTS', SUSPECTS) == 1
if more_suspects then wake('bulk') end
return cmsgpack.pack({jobs = jobs, more_suspects = more_suspects})
