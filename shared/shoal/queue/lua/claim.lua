-- Take over one job that a worker left pending: of those delivered least, the one that has waited longest.
-- KEYS: the stream, and the key that names the job which the owner ran alone.
-- args: consumer (the new worker), owner (the present one), held: entries that the consumer has in memory, max_looked_at
-- Returns {entry, job, id, put_ms, record, deliveries}, or an empty map if there is none.
-- A delivery counts if the job may have ended its worker. If the owner ran one job alone, only that one may have.
local stream, isolated = KEYS[1], redis.call('GET', KEYS[2])
local alone = isolated and cmsgpack.unpack(isolated)

local is_held = {}
for _, entry in ipairs(args.held) do is_held[entry] = true end

local function is_counted(entry)
  if args.consumer == args.owner then return false end -- a worker that takes back its own job has not died of it
  return not alone or (alone.stream == stream and alone.entry == entry)
end

local pending = {}
local most = args.max_looked_at + #args.held
for place, about in ipairs(redis.call('XPENDING', stream, GROUP, '-', '+', most, args.owner)) do
  local entry, _, _, deliveries = unpack(about)
  if not is_held[entry] then pending[#pending + 1] = {entry = entry, deliveries = deliveries, place = place} end
end
table.sort(pending, function(a, b)
  return a.deliveries < b.deliveries or a.deliveries == b.deliveries and a.place < b.place
end)
for _, job in ipairs(pending) do
  local found = redis.call('XRANGE', stream, job.entry, job.entry)[1]
  if found then
    local deliveries = is_counted(job.entry) and job.deliveries + 1 or job.deliveries
    redis.call('XCLAIM', stream, GROUP, args.consumer, 0, job.entry, 'RETRYCOUNT', deliveries)
    local fields = fields_of(found)
    local claimed = {entry = job.entry, job = fields.job or '', id = fields.id, put_ms = fields.put_ms, record = fields.record}
    claimed.deliveries = deliveries
    return cmsgpack.pack(claimed)
  end
  redis.call('XACK', stream, GROUP, job.entry) -- deleted while it was pending: nothing is left to answer
end
return cmsgpack.pack({none = true})
