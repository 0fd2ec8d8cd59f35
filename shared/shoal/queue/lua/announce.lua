-- Announce that a worker is alive, and forget workers whose time is over. After Redis's clock was set back, or when a
-- Redis whose clock is behind took over, the times of all are too far away: none counts as alive for longer than this one.
-- args: worker, alive_ms, kept_ms (how long the heartbeat is kept), about (its bytes, if it is to be written), and, if they
-- are known, group (of the workers that share its processors), name (that of this worker among them), num_known (as many
-- of these the worker knows); with `about` also limits (a flat list of names and numbers, for programs that put jobs) and
-- digest (of the scripts that they use)
-- Returns {has_about, has_scripts, num_sharing, sharing}: true if Redis has the heartbeat, and the scripts; the number of workers that share the
-- processors, and their names if the worker knows another number.
local alive, heartbeat = ROOT .. 'alive', ROOT .. 'worker:' .. args.worker
local neighbours = args.group and ROOT .. 'processors:' .. args.group
local now = now_ms()
local until_ms = now + args.alive_ms

-- Add a living worker to a sorted set, and take those out whose time is over.
local function add(key, member)
  call('ZADD', key, until_ms, member)
  for _, other in ipairs(call('ZRANGEBYSCORE', key, '(' .. string.format('%.0f', until_ms), '+inf')) do
    call('ZADD', key, until_ms, other)
  end
  call('ZREMRANGEBYSCORE', key, '-inf', now)
  call('PEXPIRE', key, args.kept_ms)
end

call('PEXPIRE', alive, args.kept_ms) -- allowed when memory is full, and what follows a script's first write is too
add(alive, args.worker)
local answer = {num_sharing = 0}
if neighbours then
  add(neighbours, args.name)
  answer.num_sharing = call('ZCARD', neighbours)
  if answer.num_sharing ~= args.num_known then
    answer.sharing = call('ZRANGEBYSCORE', neighbours, '-inf', '+inf')
  end
end
if args.about then
  call('SET', heartbeat, args.about, 'PX', args.kept_ms)
  if #args.limits > 0 then call('HSET', ROOT .. 'limits', unpack(args.limits)) end
  answer.has_scripts = call('HGET', ROOT .. 'scripts', 'digest') == args.digest
end
answer.has_about = call('EXISTS', heartbeat) == 1
return cmsgpack.pack(answer)
