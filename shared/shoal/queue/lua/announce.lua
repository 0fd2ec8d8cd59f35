-- Announce that a worker is alive, and forget workers whose time is over. After Redis's clock was set back, or when a Redis
-- whose clock is behind took over, the times of all are too far away: none counts as alive for longer than this one.
-- args: worker, alive_ms, kept_ms (how long the heartbeat is kept), about (its bytes, if it is to be written), and, if they
--   are known, group (of the workers that share its processors), name (that of this worker among them), num_known (as many
--   of these the worker knows); with `about` also limits (a flat list of names and numbers, for programs that put jobs) and
--   digest (of the scripts that they use)
-- Returns {has_about, has_scripts, num_sharing, sharing}: true if Redis has the heartbeat, and the scripts; the number of
--   workers that share the processors, and their names if the worker knows another number.
local heartbeat, now = ROOT .. 'worker:' .. args.worker, now_ms()
local until_ms, answer = now + args.alive_ms, {num_sharing = 0}

-- Add a living worker to a sorted set, and take those out whose time is over. Returns those that are left.
local function announce(key, member)
  call('PEXPIRE', key, args.kept_ms) -- allowed when memory is full, and so is what follows it
  call('ZADD', key, until_ms, member)
  for _, other in ipairs(call('ZRANGEBYSCORE', key, '(' .. string.format('%.0f', until_ms), '+inf')) do
    call('ZADD', key, until_ms, other)
  end
  call('ZREMRANGEBYSCORE', key, '-inf', now)
  call('PEXPIRE', key, args.kept_ms)
end

announce(ROOT .. 'alive', args.worker)
if args.group then
  local neighbours = ROOT .. 'processors:' .. args.group
  announce(neighbours, args.name)
  answer.num_sharing = call('ZCARD', neighbours)
  if answer.num_sharing ~= args.num_known then answer.sharing = call('ZRANGE', neighbours, 0, -1) end
end
if args.about then
  call('SET', heartbeat, args.about, 'PX', args.kept_ms)
  if #args.limits > 0 then call('HSET', ROOT .. 'limits', unpack(args.limits)) end
  answer.has_scripts = call('HGET', ROOT .. 'scripts', 'digest') == args.digest
end
answer.has_about = call('EXISTS', heartbeat) == 1
return cmsgpack.pack(answer)
