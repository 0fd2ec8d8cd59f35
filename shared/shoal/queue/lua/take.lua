-- Give waiting jobs to a worker.
-- args: worker, room: list of {lane, texts} (lanes in their order, and the texts that the worker has room for), max_jobs (of
--   each lane), max_bytes, max_job_bytes, head_bytes, takes_suspects (true if a suspect would run alone in the worker)
-- Returns {jobs, more_suspects}: list of {key, job (its bytes), lane, client, texts, put_ms, deaths, died, status, reply_to,
--   size_bytes}. A lane gives jobs until it has given max_jobs or the texts reach the room; all lanes, until the jobs' bytes
--   reach max_bytes. The job that exceeds the room or the bytes is still given. A suspect is given alone, because it may end
--   the worker, which gets no other job until the suspect is answered. more_suspects is true if any suspects wait.
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
