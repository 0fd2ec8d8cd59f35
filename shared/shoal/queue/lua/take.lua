-- Give waiting jobs to a worker, of the lanes in the given order.
-- args: worker, room: list of {lane, texts} (what the worker has room for), max_jobs (of each lane), max_bytes, max_job_bytes,
--   head_bytes, takes_suspects (true if nothing runs in the worker, so that a suspect would run alone)
-- Returns {jobs, more_suspects}: list of {key, job (its bytes), lane, client, texts, put_ms, deaths, died, status, reply_to,
--   size_bytes}. Jobs of a lane until they are max_jobs or their texts reach the room, and of all lanes until their bytes
--   reach max_bytes; the one that exceeds the room or the bytes is still given. A suspect is given alone, and until it is
--   answered its worker gets no other job: it may end the worker. more_suspects is true if any wait.
local ADMITTED_AT_ONCE = 256

-- Let the jobs that programs have pushed without a script wait as those of one client. Their bytes are not read here: a
-- number is their id until a worker has read them. A key that another program wrote fails before a job is popped, not after.
local function admit(lane)
  local pushed = ROOT .. 'lane:' .. lane
  local num = math.min(call('LLEN', pushed), ADMITTED_AT_ONCE)
  if num == 0 then return end
  call('ZCARD', key_of(lane, 'jobs'))
  for _, what in ipairs({'of:', 'new'}) do call('LLEN', key_of(lane, what)) end
  for _ = 1, num do
    local id, packed = '+' .. call('INCR', ROOT .. 'lane:pushed'), call('LPOP', pushed)
    local texts = guess_of_texts(packed)
    enqueue(lane, '', id, texts, packed, now, {})
    count(lane, '', 1, texts, #packed)
  end
end

-- Do a step for a lane, unless another program wrote one of its keys: the other lanes go on.
local function attempt(step, ...)
  local is_done, fault = pcall(step, ...)
  local message = type(fault) == 'table' and fault.err or fault
  if not is_done and not string.find(message, 'WRONGTYPE', 1, true) then error(fault, 0) end
end

local has_suspect, has_suspects = suspect_of(args.worker), call('EXISTS', SUSPECTS) == 1
for _, wanted in ipairs(args.room) do call('DEL', key_of(wanted.lane, 'wake')) end -- allowed when memory is full: so is the rest
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
