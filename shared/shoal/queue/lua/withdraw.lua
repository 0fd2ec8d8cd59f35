-- Withdraw jobs whose clients no longer wait, whether a worker has them or not. args: jobs (their ids)
-- Returns {withdrawn}: how many were still unanswered.
local withdrawn = 0
for _, id in ipairs(args.jobs) do
  if remove(id) ~= nil then
    call('DEL', record_of(id))
    withdrawn = withdrawn + 1
  end
end
settle()
return cmsgpack.pack({withdrawn = withdrawn})
