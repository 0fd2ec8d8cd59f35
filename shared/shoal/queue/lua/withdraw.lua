-- Remove jobs whose clients no longer wait, even if a worker holds them. args: jobs (their ids)
-- Returns {withdrawn}: the number of jobs that were still unanswered.
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
