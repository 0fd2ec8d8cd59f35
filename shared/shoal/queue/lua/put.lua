-- Add the jobs of a client to a lane, or no job if there is no room for all. A job that is already there stays unchanged.
-- args: lane, client, jobs: list of {id, job (its bytes), texts (their number, or nil), reply_to (the address of the reply,
--   or nil), keeps_status (true if a job with an address has a status too)}, once (optional, with a single job):
--   {key, owner (of the key; default: the client), digest (optional)}. docs/protocol.md has the results.
return run(function()
  local lane, client, jobs = check(LANE, args.lane, 'lane'), check(LABEL, args.client, 'client'), check(LIST, args.jobs, 'jobs')
  local limits = limits_of('max_jobs', 'max_texts', 'max_bytes', 'max_put_bytes', 'max_unread_bytes')
  if #jobs > limits.max_jobs then
    return {status = 'too_large', exceeded = 'jobs', asked = #jobs, most = math.ceil(SHARE * limits.max_jobs)}
  end
  local new, is_new, seen, keeps = {jobs = 0, texts = 0, bytes = 0}, {}, {}, args.once ~= nil
  for n = 1, #jobs do
    local job = check(MAP, jobs[n], 'jobs[%d]', n - 1)
    check(NAME, job.id, 'jobs[%d].id', n - 1)
    check(STRING, job.job, 'jobs[%d].job', n - 1)
    if job.reply_to ~= nil then check(NAME, job.reply_to, 'jobs[%d].reply_to', n - 1) end
    check(FLAG, job.keeps_status or false, 'jobs[%d].keeps_status', n - 1)
    job.texts = job.texts == nil and guess_of_texts(job.job) or check(TEXTS, job.texts, 'jobs[%d].texts', n - 1)
    is_new[n] = not seen[job.id] and call('EXISTS', record_of(job.id)) == 0
    if is_new[n] then
      new.jobs, new.texts, new.bytes = new.jobs + 1, new.texts + job.texts, new.bytes + #job.job
      seen[job.id], keeps = true, keeps or not job.reply_to
    end
  end
  local once, answer
  if args.once ~= nil then once, answer = use_of(args.once) end
  if not answer and new.jobs == 0 then answer = {status = 'ok', is_new = is_new} end
  if answer then return answer end

  for _, what in ipairs({'new', 'old', 'of:' .. client}) do look('LLEN', key_of(lane, what)) end
  look('HEXISTS', key_of(lane, 'credit'), 'owed')
  local share, refusal = unread_of(client, limits)
  refusal = keeps and refusal or count_or_refuse(lane, client, new, limits)
  if refusal then return refusal end
  local now, lives = now_ms(), once and remember(once, jobs[1].id, share)
  for n, job in ipairs(jobs) do
    local more = {job.reply_to and 'reply_to', job.reply_to}
    if once or job.keeps_status or not job.reply_to then more[#more + 1], more[#more + 2] = 'status', 'queued' end
    if once then more[#more + 1], more[#more + 2] = 'lives', lives end
    if is_new[n] then enqueue(lane, client, job.id, job.texts, job.job, now, more) end
  end
  wake(lane)
  return {status = 'ok', is_new = is_new}
end)
