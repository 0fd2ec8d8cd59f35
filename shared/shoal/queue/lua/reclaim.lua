-- Put back jobs that their worker cannot answer. This worker's jobs are put back if it leaves, or if it does not know them
-- because an answer of Redis was lost. Jobs of dead workers become suspects, because any of them may have ended its worker:
-- loop/admission.py refuses a job after MAX_DEATHS.
-- If a dead worker held a suspect, which ran alone, only the suspect is blamed.
-- A worker that has not announced itself for half of alive_ms looks for no dead workers, because Redis may have been away.
-- args: worker, holds (keys of the jobs that it knows), leaves, every_ms (time between looks for dead workers), alive_ms
-- Returns {own, dead}: the number of this worker's jobs that were put back, and for each dead worker {worker, jobs}.
local MOST_WORKERS = 8 -- largest number of dead workers at a time
local ALIVE, TURN = ROOT .. 'alive', ROOT .. 'reclaimed' -- TURN exists while no worker looks for dead ones

-- Put back a worker's jobs, except known jobs; return their number. The last job goes first, so all keep their order.
local function put_back_all(worker, is_known, has_died)
  local number, suspect = 0, suspect_of(worker)
  for _, id in ipairs(call('ZREVRANGE', held_by(worker), 0, -1)) do
    local is_suspect = has_died and (id == suspect or not suspect)
    if not is_known[id] and put_back(worker, id, true, is_suspect) then number = number + 1 end
  end
  if call('EXISTS', held_by(worker)) == 0 then call('SREM', HOLDERS, worker) end
  return number
end

local is_known, dead, now = {}, {}, now_ms()
for _, id in ipairs(args.leaves and {} or args.holds) do is_known[id] = true end
call('PERSIST', HOLDERS) -- Redis allows this even if memory is full, and then later writes too
local own = put_back_all(args.worker, is_known, false)
local left_ms = call('PTTL', TURN) -- more than alive_ms if Redis's clock was set back
local is_heard = tonumber(call('ZSCORE', ALIVE, args.worker) or 0) > now + args.alive_ms / 2
if is_heard and not args.leaves and (left_ms <= 0 or left_ms > args.alive_ms) then
  for _, worker in ipairs(call('SMEMBERS', HOLDERS)) do
    local until_ms = tonumber(call('ZSCORE', ALIVE, worker) or 0)
    if worker ~= args.worker and until_ms <= now and #dead < MOST_WORKERS then
      dead[#dead + 1] = {worker = worker, jobs = put_back_all(worker, {}, true)}
    end
  end
  if #dead == 0 then call('SET', TURN, args.worker, 'PX', args.every_ms) else call('DEL', TURN) end -- more workers may be dead
end
return cmsgpack.pack({own = own, dead = dead})
