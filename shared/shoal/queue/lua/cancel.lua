-- Cancel an unanswered job whose status is kept. A worker that holds the job notices that it is gone.
-- args: id (of the job). Returns {status}, the job's status afterwards, or {is_unknown}.
return run(function()
  local id, result_ttl_s = check(NAME, args.id, 'id'), limits_of('result_ttl_s').result_ttl_s
  local job = read(id, PLACE)
  if not job.status then return {is_unknown = true} end
  if not job.lane then return {status = job.status} end
  call('HDEL', record_of(id), 'timings') -- none yet; Redis allows this even if memory is full, and then later writes too
  local failure = {code = 'cancelled', message = 'job ' .. id .. ' was cancelled'}
  local reply = cmsgpack.pack({v = 1, id = id, status = 'cancelled', error = failure})
  local fault = send(id, job.reply_to, job.client, reply, result_ttl_s)
  if fault then refuse(ROOT .. address_of(id, job.reply_to) .. ' holds something else: ' .. fault) end
  remove(id, job)
  settle()
  conclude(id, 'cancelled', '', result_ttl_s)
  return {status = 'cancelled'}
end)
