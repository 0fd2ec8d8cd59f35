-- Add the jobs of a client to a lane, or no job if there is no room for all. A job that is already there stays unchanged.
-- args: lane, client, jobs: list of {id, job (its bytes), texts (their number, or nil), reply_to (the address of the reply,
--   or nil), keeps_status (true if a job with an address has a status too)}, once (optional, with a single job):
--   {key, owner (of the key; default: the client), digest (optional)}. docs/protocol.md has the results.

-- Room for jobs
local SHARE = 7 / 8 -- a client may fill this share of the room that others leave in a lane, so the next client finds room
local UNREAD_FLOOR = 1 / 64 -- of max_unread_bytes: a client below this share is never refused for others' unread results

-- Return a sum that Redis has, or 0 if another program wrote something else, such as 'inf'.
local function sum_of(value)
  local sum = tonumber(value) or 0
  return sum > -2 ^ 63 and sum < 2 ^ 63 and sum or 0
end

-- Return a client's unread bytes divided by its limit, and a refusal if the client has reached the limit.
local function unread_of(client, limits)
  local all, own = unpack(look('HMGET', UNREAD_LOAD, 'bytes', 'client:' .. client))
  all, own = sum_of(all), sum_of(own)
  local most = math.max(math.floor(UNREAD_FLOOR * limits.max_unread_bytes), limits.max_unread_bytes - all)
  return own / most, own >= most and {status = 'unread', bytes = all, client_bytes = own, most = most}
end

-- Add new jobs of a client to the load of a lane, or return a refusal.
local function count_or_refuse(lane, client, new, limits)
  local load, full = key_of(lane, 'load'), {jobs = look('ZCARD', key_of(lane, 'jobs'))}
  local held = look('HMGET', load, 'jobs:' .. client, 'texts:' .. client, 'bytes:' .. client, 'texts', 'bytes')
  for n = 1, 5 do held[n] = full.jobs > 0 and sum_of(held[n]) or 0 end -- without jobs, Redis has lost them
  full.texts, full.bytes = held[4], held[5]
  for n, what in ipairs({'jobs', 'texts', 'bytes'}) do
    local own, asked, limit = held[n], new[what], limits['max_' .. what]
    local alone, most = math.ceil(SHARE * limit), math.ceil(SHARE * (limit - full[what] + own))
    if what == 'bytes' then alone = math.min(alone, limits.max_put_bytes) end
    if asked > alone then return {status = 'too_large', exceeded = what, asked = asked, most = alone} end
    if own + asked > most then
      full.status, full.exceeded, full.asked, full.own, full.most = 'full', what, asked, own, most
    end
  end
  if full.status then return full end
  call('HSET', load, 'texts', full.texts + new.texts, 'bytes', full.bytes + new.bytes, 'jobs:' .. client, held[1] + new.jobs,
    'texts:' .. client, held[2] + new.texts, 'bytes:' .. client, held[3] + new.bytes)
end

-- Idempotency keys: two owners may use the same key.
local ONCE_TTL_S, LEAST_ONCE_S = 86400, 60 -- usual and shortest time for which a key is remembered
-- A client that uses WHOLE_SHARE of its unread bytes or less gets the usual time. Each further HALVING_SHARE halves it.
local WHOLE_SHARE, HALVING_SHARE = 1 / 4, 1 / 24

-- Check a key; return its name, and an answer if the key was used. An expired or cancelled job frees its key.
local function use_of(once)
  check(MAP, once, 'once')
  check(WORD, once.key, 'once.key')
  if once.owner ~= nil then check(LABEL, once.owner, 'once.owner') end
  if once.digest ~= nil then check(LABEL, once.digest, 'once.digest') end
  if #args.jobs > 1 then refuse('once goes with one job, and jobs has ' .. #args.jobs) end
  local owner = once.owner or args.client
  if string.find(owner, '%z') then owner = redis.sha1hex(owner) end -- a zero byte ends the owner
  local name = 'once:' .. redis.sha1hex(owner .. '\0' .. once.key)
  local id, digest = unpack(look('HMGET', ROOT .. name, 'id', 'digest'))
  local status = id and read(id, {'status'}).status
  if not id or status == 'expired' or status == 'cancelled' then return name, nil end
  return name, {status = digest == (once.digest or '') and 'known' or 'reused', id = id}
end

-- Remember a key; return the number of seconds. `share` is the used share of the client's unread bytes.
local function remember(name, id, share)
  local halvings = math.max(0, share - WHOLE_SHARE) / HALVING_SHARE
  local ttl_s = math.max(LEAST_ONCE_S, math.floor(ONCE_TTL_S / 2 ^ halvings))
  call('HSET', ROOT .. name, 'id', id, 'digest', args.once.digest or '')
  call('EXPIRE', ROOT .. name, ttl_s)
  keep(member_of(name, KEYS_BYTES, args.client), ttl_s)
  return ttl_s
end

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
