-- Let jobs wait again whose worker cannot answer them: those that this worker was given and does not know of, as a reply
-- of Redis was lost, or all of its jobs if it leaves; and those of dead workers. A worker may have died of any of them, but
-- of nothing else than the suspect if it had one, which ran alone.
-- args: worker, holds (keys of the jobs that it has), leaves, every_ms (nil if no worker counts as dead now)
-- Returns {own, dead}: how many own jobs wait again, and for each dead worker {worker, jobs}.
local MOST_WORKERS, MOST_JOBS = 8, 256 -- whose jobs are moved at a time
local TURN = ROOT .. 'reclaimed'

-- The last job goes first, before the others, so they keep their order.
local function put_back_all(worker, is_known, has_died)
  local number, suspect = 0, suspect_of(worker)
  call('PERSIST', HOLDERS) -- allowed when memory is full, and so is what follows it
  for _, id in ipairs(call('ZREVRANGE', held_by(worker), 0, has_died and MOST_JOBS - 1 or -1)) do
    if not is_known[id] and put_back(worker, id, true, has_died and (id == suspect or not suspect)) then
      number = number + 1
    end
  end
  if call('EXISTS', held_by(worker)) == 0 then call('SREM', HOLDERS, worker) end
  return number
end

-- One worker looks for dead ones in a while. The time left is more than that if Redis's clock was set back since.
local function takes_turn()
  local left_ms = call('PTTL', TURN)
  if left_ms > 0 and left_ms <= args.every_ms then return false end
  call('DEL', TURN)
  call('SET', TURN, args.worker, 'PX', args.every_ms)
  return true
end

local is_known, dead = {}, {}
for _, id in ipairs(args.leaves and {} or args.holds) do is_known[id] = true end
local own = put_back_all(args.worker, is_known, false)
if args.every_ms and takes_turn() then
  local now, alive = now_ms(), ROOT .. 'alive'
  for _, worker in ipairs(call('SMEMBERS', HOLDERS)) do
    local until_ms = tonumber(call('ZSCORE', alive, worker) or 0)
    if worker ~= args.worker and until_ms <= now and #dead < MOST_WORKERS then
      dead[#dead + 1] = {worker = worker, jobs = put_back_all(worker, {}, true)}
    end
  end
  if #dead > 0 then call('DEL', TURN) end -- there may be more
end
return cmsgpack.pack({own = own, dead = dead})
