-- Withdraw jobs whose clients no longer wait, whether a worker has them or not. args: jobs (their ids)
-- Returns {withdrawn}: how many were still unanswered.
local withdrawn = 0
for _, id in ipairs(args.jobs) do
  local job = read(id, PLACE)
  job.status = nil -- nothing is kept
  if job.lane then
    remove(id, job)
    withdrawn = withdrawn + 1
  end
end
settle()
return cmsgpack.pack({withdrawn = withdrawn})
