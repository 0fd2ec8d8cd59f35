-- Let jobs wait again whose worker cannot answer them: those that this worker was given and does not know of, as a reply
-- of Redis was lost, or all of its jobs if it leaves; and those of dead workers. A worker may have died of any of them, but
-- of nothing else than the suspect if it had one, which ran alone.
-- args: worker, holds (keys of the jobs that it has), leaves, every_ms (nil if no worker counts as dead now)
-- Returns {own, dead}: how many own jobs wait again, and for each dead worker {worker, jobs}.
local MOST_WORKERS, MOST_JOBS = 8, 256 -- whose jobs are moved at a time
local TURN = ROOT .. 'reclaimed' -- of a worker that looks for dead ones

-- The last job goes first, before the others, so they keep their order.
local function put_back_all(worker, is_known, has_died)
  local number, suspect = 0, suspect_of(worker)
  for _, id in ipairs(call('ZREVRANGE', held_by(worker), 0, has_died and MOST_JOBS - 1 or -1)) do
    local is_suspect = has_died and (id == suspect or not suspect)
    if not is_known[id] and put_back(worker, id, true, is_suspect) then number = number + 1 end
  end
  if call('EXISTS', held_by(worker)) == 0 then call('SREM', HOLDERS, worker) end
  return number
end

local is_known, dead, now = {}, {}, now_ms()
for _, id in ipairs(args.leaves and {} or args.holds) do is_known[id] = true end
call('PERSIST', HOLDERS) -- allowed when memory is full, and so is what follows it
local own = put_back_all(args.worker, is_known, false)
local left_ms = call('PTTL', TURN) -- more than a turn takes if Redis's clock was set back
if args.every_ms and (left_ms <= 0 or left_ms > args.every_ms) then
  for _, worker in ipairs(call('SMEMBERS', HOLDERS)) do
    local until_ms = tonumber(call('ZSCORE', ROOT .. 'alive', worker) or 0)
    if worker ~= args.worker and until_ms <= now and #dead < MOST_WORKERS then
      dead[#dead + 1] = {worker = worker, jobs = put_back_all(worker, {}, true)}
    end
  end
  if #dead == 0 then call('SET', TURN, args.worker, 'PX', args.every_ms) else call('DEL', TURN) end -- there may be more
end
return cmsgpack.pack({own = own, dead = dead})
