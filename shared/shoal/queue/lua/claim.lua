-- Take over one job that a worker left pending: of those delivered least, the one that has waited longest.
-- KEYS: the key that names the job which the owner ran alone, then the streams: the first that has such a job counts.
-- args: consumer (the new worker), owner (the present one), held: for each stream the entries that the consumer has in
--   memory, max_looked_at, max_job_bytes
-- Returns a delivery with source (the place of its stream) and deliveries (their number), or {none}.
-- A delivery counts if the job may have ended its worker. If the owner ran one job alone, only that one may have.
local isolated = redis.call('GET', KEYS[1])
local alone = isolated and cmsgpack.unpack(isolated)

local function is_counted(stream, entry)
  if args.consumer == args.owner then return false end -- a worker that takes back its own job has not died of it
  return not alone or (alone.stream == stream and alone.entry == entry)
end

-- The jobs of a stream that are pending for the owner and not held, in the order in which to claim them.
local function pending_in(stream, held)
  local is_held, pending = {}, {}
  for _, entry in ipairs(held) do is_held[entry] = true end
  for place, about in ipairs(redis.call('XPENDING', stream, GROUP, '-', '+', args.max_looked_at + #held, args.owner)) do
    local entry, _, _, deliveries = unpack(about)
    if not is_held[entry] then pending[#pending + 1] = {entry = entry, deliveries = deliveries, place = place} end
  end
  table.sort(pending, function(a, b)
    return a.deliveries < b.deliveries or a.deliveries == b.deliveries and a.place < b.place
  end)
  return pending
end

for n = 2, #KEYS do
  local stream = KEYS[n]
  for _, job in ipairs(pending_in(stream, args.held[n - 1])) do
    local found = redis.call('XRANGE', stream, job.entry, job.entry)[1]
    if found then
      local deliveries = is_counted(stream, job.entry) and job.deliveries + 1 or job.deliveries
      redis.call('XCLAIM', stream, GROUP, args.consumer, 0, job.entry, 'RETRYCOUNT', deliveries)
      local claimed = delivery_of(job.entry, fields_of(found))
      claimed.source, claimed.deliveries = n - 1, deliveries
      return cmsgpack.pack(claimed)
    end
    redis.call('XACK', stream, GROUP, job.entry) -- deleted while it was pending: nothing is left to answer
  end
end
return cmsgpack.pack({none = true})
