-- Give jobs back to the ends of their streams, for another worker, unless they are the worker's no longer.
-- KEYS: those of all lanes, then the records of jobs. args: lanes, consumer, jobs: list of {lane, is_overflow, entry,
--   delivered (how often before, if it was), record_key (its place among KEYS)}
local lanes = lanes_by_name()
for _, job in ipairs(args.jobs) do
  local lane = lanes[job.lane]
  local stream = job.is_overflow and lane.overflow or lane.front
  local pending = redis.pcall('XPENDING', stream, GROUP, job.entry, job.entry, 1, args.consumer)
  local fields = not pending.err and #pending == 1 and read(stream, job.entry)
  if fields then
    redis.call('XACK', stream, GROUP, job.entry)
    redis.call('XDEL', stream, job.entry) -- allowed when memory is full, and so is what follows it
    fields.put_ms, fields.delivered = fields.put_ms or string.match(job.entry, '^%d+'), job.delivered
    local flat = {}
    for name, value in pairs(fields) do flat[#flat + 1], flat[#flat + 2] = name, value end
    local entry = redis.call('XADD', stream, '*', unpack(flat))
    if job.is_overflow and fields.id then
      redis.call('HSET', lane.places, fields.id, cmsgpack.pack({entry = entry}))
    elseif job.record_key and type(redis.pcall('HGET', KEYS[job.record_key], 'entry')) == 'string' then
      redis.call('HSET', KEYS[job.record_key], 'status', 'queued', 'entry', entry)
    end
  end
end
return cmsgpack.pack({})
