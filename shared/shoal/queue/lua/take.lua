-- Read waiting jobs for a worker, source by source in the given order.
-- KEYS: those of all lanes, then the workers that listen, those that sleep and those that are alive.
-- args: lanes, consumer, max_bytes, max_job_bytes, sources: list of {lane, is_overflow, room (texts that the worker has
--   room for)}, waits (true if the worker waits for a job of any source where there is none), and those of idle workers
-- Returns {has_group, is_large, sleeps, jobs}: a list of deliveries with lane and is_overflow. A source is read until its
--   texts reach the room, and all of them until their bytes reach max_bytes; the job that exceeds either is still taken,
--   and one job of each source whatever its size. Where a stream has no group, has_group is false. is_large is true if
--   the pool has more workers than listen, and sleeps if this one is to sleep.
local lanes, jobs, bytes, has_group = lanes_by_name(), {}, 0, true

local function read_one(source)
  local lane = lanes[source.lane]
  local stream = source.is_overflow and lane.overflow or lane.front
  if source.is_overflow then refill(lane) end -- a worker that died after a blocking read may have left nothing unread
  if redis.call('XLEN', stream) == 0 then return nil end
  local found = redis.pcall('XREADGROUP', 'GROUP', GROUP, args.consumer, 'COUNT', 1, 'STREAMS', stream, '>')
  if found and found.err then
    if not string.find(found.err, 'NOGROUP', 1, true) then error(found.err, 0) end
    has_group = false
    return nil
  end
  if not found then return nil end
  if source.is_overflow then refill(lane) end
  return found[1][2][1]
end

for _, source in ipairs(args.sources) do
  local room = source.room
  while room > 0 and (bytes < args.max_bytes or room == source.room) do
    local entry = read_one(source)
    if not entry then break end
    local fields = fields_of(entry)
    local job = delivery_of(entry[1], fields)
    job.lane, job.is_overflow = source.lane, source.is_overflow
    jobs[#jobs + 1] = job
    room = room - math.max(1, count_of(fields) or 1)
    bytes = bytes + #job.job
  end
end

local idle, sleeps = idle_at(#args.lanes * #LANE_KEYS + 1), false
local is_large = is_large(idle)
if is_large and #jobs > 0 then
  hand_on(idle, args.consumer) -- it may have been woken when it had just stopped to wait
elseif is_large and args.waits then
  sleeps = rest(idle, args.consumer)
end
return cmsgpack.pack({has_group = has_group, is_large = is_large, sleeps = sleeps, jobs = jobs})
