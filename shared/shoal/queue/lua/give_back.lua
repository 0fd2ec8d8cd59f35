-- Return jobs of a worker to their lanes, at the end of their clients' lists, for another worker.
-- args: worker, jobs (their keys)
for _, id in ipairs(args.jobs) do put_back(args.worker, id, false, false) end
return cmsgpack.pack({})
