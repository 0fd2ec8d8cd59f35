-- Announce that a worker is alive, and remove workers whose time has ended. If Redis's clock was set back, or a Redis whose
-- clock is behind took over, all workers' times lie in the future. The script therefore lowers times that are later than
-- this worker's. If no worker announced itself for half of alive_ms, Redis was away: no worker looks for dead ones until
-- each had time to announce itself.
-- args: worker, alive_ms, about (the bytes of the heartbeat), limits (a flat list of names and numbers, for programs that put
--   jobs), digest (of the scripts that these programs use), group (of workers that share processors, or nil)
-- Returns {has_scripts, num_sharing}: whether Redis has the scripts; the number of workers in the group.
local now = now_ms()
local until_ms, answer = now + args.alive_ms, {num_sharing = 0}

-- Add a living worker to a sorted set, and remove workers whose time has ended.
local function announce(key, member)
  call('PEXPIRE', key, args.alive_ms) -- Redis allows this even if memory is full, and then later writes too
  call('ZADD', key, until_ms, member)
  for _, other in ipairs(call('ZRANGEBYSCORE', key, '(' .. string.format('%.0f', until_ms), '+inf')) do
    call('ZADD', key, until_ms, other)
  end
  call('ZREMRANGEBYSCORE', key, '-inf', now)
  call('PEXPIRE', key, args.alive_ms)
end

local newest_ms = tonumber(call('ZRANGE', ROOT .. 'alive', -1, -1, 'WITHSCORES')[2] or 0)
announce(ROOT .. 'alive', args.worker)
if newest_ms < now + args.alive_ms / 2 then call('SET', ROOT .. 'reclaimed', args.worker, 'PX', args.alive_ms) end
if args.group then
  local neighbours = ROOT .. 'processors:' .. args.group
  announce(neighbours, args.worker)
  answer.num_sharing = call('ZCARD', neighbours)
end
if #args.limits > 0 then call('HSET', ROOT .. 'limits', unpack(args.limits)) end
answer.has_scripts = call('HGET', ROOT .. 'scripts', 'digest') == args.digest
call('SET', ROOT .. 'worker:' .. args.worker, args.about, 'PX', args.alive_ms)
return cmsgpack.pack(answer)
