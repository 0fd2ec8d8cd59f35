-- Tell what each lane holds, and for how long.
-- KEYS: those of all lanes. args: lanes
-- Returns {lanes}: for each lane {jobs, texts, bytes, oldest_ms}. The last is the age of the oldest of the jobs that workers
--   hold or take next: of those that wait in the overflow, none is looked at.
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)

-- The first of the entries that workers hold, else the first that they take; false if there is none. The first way reads
-- no job, which may have megabytes.
local function first_of(stream)
  local pending = redis.pcall('XPENDING', stream, GROUP) -- an error if there is no group
  if not pending.err and pending[1] > 0 then return pending[2] end
  local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  return first and first[1]
end

-- The age of an entry; one of the overflow says when its job was put, which waited before it came into the stream.
local function age_of(stream, entry, is_overflow)
  local fields = is_overflow and read(stream, entry)
  local put_ms = fields and fields.put_ms or string.match(entry, '^%d+')
  return math.max(0, now_ms - (tonumber(put_ms) or now_ms))
end

local found, lanes = {}, lanes_by_name()
for n, name in ipairs(args.lanes) do
  local lane = lanes[name]
  local load = redis.call('HMGET', lane.load, 'texts', 'bytes')
  local jobs = redis.call('XLEN', lane.front) + redis.call('XLEN', lane.overflow) + redis.call('ZCARD', lane.waiting)
  local front, overflow = first_of(lane.front), first_of(lane.overflow)
  local front_ms = front and age_of(lane.front, front, false) or 0
  local overflow_ms = overflow and age_of(lane.overflow, overflow, true) or 0
  found[n] = {jobs = jobs, texts = tonumber(load[1] or 0), bytes = tonumber(load[2] or 0)}
  found[n].oldest_ms = math.max(front_ms, overflow_ms)
end
return cmsgpack.pack({lanes = found})
