-- Look which jobs are still in their lanes: waiting, or with a worker.
-- KEYS: those of all lanes. args: lanes, jobs: list of {lane, is_overflow, entry (at the front), id (of the job)}
-- Returns {held}: for each job true or false.
local lanes, held = lanes_by_name(), {}
for n, job in ipairs(args.jobs) do
  local lane = lanes[job.lane]
  if job.is_overflow then
    held[n] = redis.call('HEXISTS', lane.places, job.id) == 1
  else
    local fields = read(lane.front, job.entry)
    held[n] = fields ~= nil and holds(fields, job.id)
  end
end
return cmsgpack.pack({held = held})
