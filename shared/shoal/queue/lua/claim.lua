-- Take over one job that a worker left pending: of those with the fewest deliveries, the one that has waited longest.
-- KEYS: the key that names the suspect which the owner read or ran, that of the consumer, then the streams: the first
--   that has such a job counts.
-- args: consumer (the new worker), owner (the present one), held: for each stream the entries that the consumer has in
--   memory, max_looked_at, max_job_bytes, ttl_s (for which the consumer's suspect is named)
-- Returns a delivery with source (the place of its stream) and deliveries (their number), or {none}.
-- A delivery counts if the job may have ended its worker. A job whose delivery was counted is a suspect: its workers name
-- it while they read or run it, and run nothing else then. So it is the named job, or any that is no suspect. The consumer
-- names a suspect from its claim on: it reads it next.
local named = redis.call('GET', KEYS[1])
named = named and cmsgpack.unpack(named)

local function is_counted(stream, entry, deliveries)
  if args.consumer == args.owner then return false end -- a worker that takes back its own job has not died of it
  if named then return named.stream == stream and named.entry == entry end
  return deliveries == 1
end

-- The jobs of a stream that are pending for the owner and not held, in the order in which to claim them.
local function pending_in(stream, held)
  local is_held, pending = {}, {}
  for _, entry in ipairs(held) do is_held[entry] = true end
  for place, about in ipairs(redis.call('XPENDING', stream, GROUP, '-', '+', args.max_looked_at + #held, args.owner)) do
    local entry, _, _, deliveries = unpack(about)
    if is_counted(stream, entry, deliveries) then deliveries = deliveries + 1 end
    if not is_held[entry] then pending[#pending + 1] = {entry = entry, deliveries = deliveries, place = place} end
  end
  table.sort(pending, function(a, b)
    return a.deliveries < b.deliveries or a.deliveries == b.deliveries and a.place < b.place
  end)
  return pending
end

for n = 3, #KEYS do
  local stream = KEYS[n]
  for _, job in ipairs(pending_in(stream, args.held[n - 2])) do
    local found = redis.call('XRANGE', stream, job.entry, job.entry)[1]
    if found then
      redis.call('XCLAIM', stream, GROUP, args.consumer, 0, job.entry, 'RETRYCOUNT', job.deliveries)
      if job.deliveries > 1 then
        redis.call('SET', KEYS[2], cmsgpack.pack({stream = stream, entry = job.entry}), 'EX', args.ttl_s)
      end
      local claimed = delivery_of(job.entry, fields_of(found))
      claimed.source, claimed.deliveries = n - 2, job.deliveries
      return cmsgpack.pack(claimed)
    end
    redis.call('XACK', stream, GROUP, job.entry) -- deleted while it was pending: nothing is left to answer
  end
end
return cmsgpack.pack({none = true})
