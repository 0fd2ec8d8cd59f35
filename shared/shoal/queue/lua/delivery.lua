-- The second part of the scripts that give jobs to workers.

-- Return the delivery of an entry with these fields: the entry, its job, and what a worker reads beside it. Of a job of
-- more than args.max_job_bytes it has the beginning, and its size_bytes: a worker that cannot read the job would never
-- answer it.
local function delivery_of(entry, fields)
  local job = fields.job or ''
  local delivery = {entry = entry, job = job}
  for _, name in ipairs({'id', 'client', 'put_by', 'put_ms', 'record', 'delivered'}) do delivery[name] = fields[name] end
  if #job > args.max_job_bytes then
    delivery.job, delivery.size_bytes = string.sub(job, 1, HEAD_BYTES), #job
  end
  return delivery
end

