-- Withdraw jobs whose clients no longer wait, whether a worker has them or not.
-- KEYS: those of all lanes. args: lanes, jobs: list of {lane, is_overflow, entry (its id in the overflow)}
-- Returns {withdrawn}: how many were still unanswered.
local lanes, withdrawn = lanes_by_name(), 0
for _, job in ipairs(args.jobs) do
  local lane = lanes[job.lane]
  if take_back(lane, job.is_overflow and lane.overflow or lane.front, job.entry) then withdrawn = withdrawn + 1 end
end
return cmsgpack.pack({withdrawn = withdrawn})
