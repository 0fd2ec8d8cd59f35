-- Read waiting jobs for a worker, source by source in the given order.
-- KEYS: those of all lanes.
-- args: lanes, consumer, max_bytes, max_job_bytes, sources: list of {lane, is_overflow, room (texts that the worker has
--   room for)}
-- Returns {has_group, jobs}: a list of deliveries with lane and is_overflow. A source is read until its texts reach the
--   room, and all of them until their bytes reach max_bytes; the job that exceeds either is still taken, and one job of
--   each source whatever its size. Where a stream has no group, has_group is false.
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
return cmsgpack.pack({has_group = has_group, jobs = jobs})
