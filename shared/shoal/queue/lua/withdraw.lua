-- Withdraw jobs whose clients no longer wait, whether a worker has them or not.
-- KEYS: those of all lanes. args: lanes, jobs: list of {lane, is_overflow, entry (at the front), id (of the job)}
-- Returns {withdrawn}: how many were still unanswered.
local lanes, withdrawn = lanes_by_name(), 0
for _, job in ipairs(args.jobs) do
  local lane = lanes[job.lane]
  local stream = job.is_overflow and lane.overflow or lane.front
  if take_back(lane, stream, job.entry, job.id) then withdrawn = withdrawn + 1 end
end
return cmsgpack.pack({withdrawn = withdrawn})
