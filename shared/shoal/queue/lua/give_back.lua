-- Give jobs that a worker holds back to their lanes, behind the others of their clients, for another worker.
-- args: worker, jobs (their keys)
for _, id in ipairs(args.jobs) do put_back(args.worker, id, false, false) end
return cmsgpack.pack({})
