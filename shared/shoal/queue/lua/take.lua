-- Give waiting jobs to a worker, of the lanes in the given order.
-- args: worker, room: list of {lane, texts} (what the worker has room for), max_bytes, max_job_bytes, head_bytes, takes_suspects,
--   holds_bulk (true if the worker holds jobs of the lane bulk)
-- Returns {jobs}: list of {key, job (its bytes), lane, client, texts, put_ms, deaths, died, status, size_bytes}. All jobs
--   of a lane until their texts reach the room, and of all lanes until their bytes reach max_bytes; the one that exceeds
--   either is still given. A suspect is given alone, to a worker that holds nothing: a job that ends a worker takes no other
--   with it. While any waits, a worker gets no other job, so that it soon holds nothing; one that holds bulk jobs, which
--   may take long, gets interactive ones.
local lanes = {}
for _, wanted in ipairs(args.room) do
  lanes[#lanes + 1] = wanted.lane
  call('DEL', key_of(wanted.lane, 'wake')) -- allowed when memory is full, and so is what follows it
end

-- Take jobs of a lane, unless another program wrote one of its keys: the other lanes go on.
local function attempt(take, ...)
  local is_done, fault = pcall(take, ...)
  local message = type(fault) == 'table' and fault.err or fault
  if not is_done and not string.find(message, 'WRONGTYPE', 1, true) then error(fault, 0) end
end

local function is_suspect_held()
  local first = call('ZRANGE', held, 0, 0)[1]
  return first and call('HEXISTS', record_of(first), 'deaths') == 1
end

local has_suspects = call('EXISTS', SUSPECTS) == 1
if has_suspects and args.takes_suspects and call('EXISTS', held) == 0 then
  give(call('LPOP', SUSPECTS))
elseif (not has_suspects or args.holds_bulk) and not is_suspect_held() then
  for _, wanted in ipairs(args.room) do
    if not has_suspects or wanted.lane == 'interactive' then
      attempt(admit, wanted.lane)
      attempt(serve, wanted.lane, wanted.texts)
    end
  end
end
settle()
if #jobs > 0 then call('SADD', HOLDERS, args.worker) end
for _, lane in ipairs(lanes) do
  if call('EXISTS', key_of(lane, 'new'), key_of(lane, 'old'), ROOT .. 'lane:' .. lane) > 0 then wake(lane) end
end
if call('EXISTS', SUSPECTS) == 1 then wake('bulk') end
return cmsgpack.pack({jobs = jobs})
