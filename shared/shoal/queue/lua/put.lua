-- Add the jobs of a client to a lane: all of them or, where the lane would hold too much, none. A job that is there is left.
-- args: lane, client, jobs: list of {id, job (its bytes), texts (their number, or nil), reply_to (the address of the reply,
--   or nil), keeps_status (true if a job with an address has a status too)}, once (optional, for one job):
--   {key, owner (whose key it is, or the client's), digest (optional), ttl_s (optional)}. The limits are those that the
--   workers have announced.
-- Returns one of
--   {status = 'ok', is_new}: for each job true, or false if it was there already;
--   {status = 'known', id}: the job that the idempotency key was used for;
--   {status = 'reused', id}: the same, where that job asks something else;
--   {status = 'full', exceeded, asked, most, jobs, texts, bytes}: which of the limits is exceeded, how much of it these jobs
--     have, the most that this client may fill, and the lane's load;
--   {status = 'unread', bytes, client_bytes, most}: the bytes of the unread results and idempotency keys of all clients, and
--     of this one, which must have less than `most`;
--   {status = 'too_large', exceeded, asked, most}: these jobs have so many jobs, texts or bytes, and no put may have more
--     than `most`.
local LIMITS = {'max_jobs', 'max_texts', 'max_bytes', 'max_put_bytes', 'max_unread_bytes'}
local BEFORE_WORKERS = {10000, 100000, 268435456, 33554432, 268435456} -- the limits while no worker has announced any
local RESERVED_SHARE = 1 / 8 -- of a lane, for clients that have few texts in it: no client fills it for all others
local FEW_TEXTS, FEW_BYTES = 128, 262144
local UNREAD_FLOOR = 1 / 64 -- of max_unread_bytes: a client with less is not refused for the unread results of others
local DAY_SHARE = 1 / 4 -- of the bytes that a client may have: with less, idempotency keys live for as long as is asked
local HALVING_SHARE = 1 / 24 -- for each of which beyond that a key lives half as long
local ONCE_TTL_S, LEAST_ONCE_S = 86400, 60 -- that a key lives, and does however much the client has
local MAX_TEXTS = 999999 -- of a job

local function fault_of_job(n, job)
  if type(job) ~= 'table' then return 'jobs[' .. n - 1 .. '] is no map' end
  local wrong = fault(n, job, 'id', 'name') or fault(n, job, 'job', 'bytes')
    or fault(n, job, 'keeps_status', 'flag') or job.reply_to ~= nil and fault(n, job, 'reply_to', 'name')
    or job.texts ~= nil and fault(n, job, 'texts', 'count')
  if wrong then return wrong end
  if job.texts and job.texts > MAX_TEXTS then
    return 'jobs[' .. n - 1 .. '].texts is ' .. job.texts .. ': it takes at most ' .. MAX_TEXTS
  end
  job.texts = job.texts or guess_of_texts(job.job)
end

local function fault_of_once(once)
  if type(once) == 'table' then
    once.owner, once.digest, once.ttl_s = once.owner or args.client, once.digest or '', once.ttl_s or ONCE_TTL_S
  end
  return fault('', args, 'once', 'map') or fault('once.', once, 'key', 'word')
    or fault('once.', once, 'owner', 'label') or fault('once.', once, 'digest', 'label') or fault('once.', once, 'ttl_s', 'count')
    or #args.jobs > 1 and 'once goes with one job, and jobs has ' .. #args.jobs
end

local wrong = fault_of_root() or fault('', args, 'lane', 'lane') or fault('', args, 'client', 'label')
  or fault('', args, 'jobs', 'list') or fault_of_value('HEXISTS', ROOT .. 'limits', '')
local limits = {}
for n, most in ipairs(wrong and {} or call('HMGET', ROOT .. 'limits', unpack(LIMITS))) do
  limits[LIMITS[n]] = tonumber(most or BEFORE_WORKERS[n])
  wrong = wrong or fault(ROOT .. 'limits.', limits, LIMITS[n], 'amount')
end
if not wrong and #args.jobs > limits.max_jobs then
  return cmsgpack.pack({status = 'too_large', exceeded = 'jobs', asked = #args.jobs, most = limits.max_jobs})
end
for n, job in ipairs(wrong and {} or args.jobs) do wrong = wrong or fault_of_job(n, job) end
local once, lane, client = args.once, args.lane, args.client
wrong = wrong or once ~= nil and (fault_of_once(once) or fault_of_value('ZCARD', UNREAD))
  or fault_of_value('HEXISTS', UNREAD_LOAD, '') or fault_of_value('ZCARD', key_of(lane, 'jobs'))
  or fault_of_value('HEXISTS', key_of(lane, 'load'), '') or fault_of_value('HEXISTS', key_of(lane, 'credit'), '')
for _, what in ipairs(wrong and {} or {'new', 'old', 'of:' .. client}) do
  wrong = wrong or fault_of_value('LLEN', key_of(lane, what))
end
if wrong then return redis.error_reply('ERR ' .. wrong) end

-- A key is its owner's alone. It is free again when its job has come to nothing: it expired, or was cancelled.
local once_name = once and redis.sha1hex(once.owner .. '\0' .. once.key)
local once_key = once and ROOT .. 'once:' .. once_name
local kept = once and call('GET', once_key)
if kept then
  local is_known, used = pcall(cmsgpack.unpack, kept)
  if not is_known or type(used) ~= 'table' or not used.id then
    return redis.error_reply('ERR ' .. once_key .. ' holds something else: choose another key')
  end
  local status = redis.pcall('HGET', record_of(used.id), 'status')
  if status ~= 'expired' and status ~= 'cancelled' then
    return cmsgpack.pack({status = used.digest == once.digest and 'known' or 'reused', id = used.id})
  end
end

local new, seen, is_new, has_results = {jobs = 0, texts = 0, bytes = 0}, {}, {}, false
for n, job in ipairs(args.jobs) do
  is_new[n] = not seen[job.id] and call('EXISTS', record_of(job.id)) == 0
  seen[job.id] = true
  if is_new[n] then
    new.jobs, new.texts, new.bytes = new.jobs + 1, new.texts + job.texts, new.bytes + #job.job
    has_results = has_results or not job.reply_to
  end
end

-- The bytes of unread results and idempotency keys of the client, and the most that it may have.
local counts = has_results or once
local counted = counts and call('HMGET', UNREAD_LOAD, 'bytes', 'client:' .. client) or {}
local unread_bytes, client_unread_bytes = tonumber(counted[1] or 0), tonumber(counted[2] or 0)
local most_unread_bytes =
  math.max(math.floor(UNREAD_FLOOR * limits.max_unread_bytes), limits.max_unread_bytes - unread_bytes)
if counts and client_unread_bytes >= most_unread_bytes then
  local refusal = {status = 'unread', bytes = unread_bytes, client_bytes = client_unread_bytes}
  refusal.most = most_unread_bytes
  return cmsgpack.pack(refusal)
end

local loads = call('HMGET', key_of(lane, 'load'), 'texts', 'bytes', 'texts:' .. client, 'bytes:' .. client)
local num_jobs = call('ZCARD', key_of(lane, 'jobs'))
for n = 1, 4 do loads[n] = num_jobs > 0 and tonumber(loads[n] or 0) or 0 end -- else it is of jobs that Redis has lost
local load = {jobs = num_jobs, texts = loads[1], bytes = loads[2]}

-- The share of the lane that the client may fill, if it has so many texts and bytes there with the new ones.
local function share_of(texts, bytes) return texts <= FEW_TEXTS and bytes <= FEW_BYTES and 1 or 1 - RESERVED_SHARE end

local share, empty_share = share_of(loads[3] + new.texts, loads[4] + new.bytes), share_of(new.texts, new.bytes)
local exceeded
for what, limit in pairs({jobs = limits.max_jobs, texts = limits.max_texts, bytes = limits.max_bytes}) do
  local most = math.floor(empty_share * limit)
  if what == 'bytes' then most = math.min(most, limits.max_put_bytes) end
  if new[what] > most then
    return cmsgpack.pack({status = 'too_large', exceeded = what, asked = new[what], most = most})
  end
  if new.jobs > 0 and load[what] + new[what] > share * limit then exceeded = what end
end
if exceeded then
  load.status, load.exceeded, load.asked = 'full', exceeded, new[exceeded]
  load.most = math.floor(share * limits['max_' .. exceeded])
  return cmsgpack.pack(load)
end

if once then
  local excess = math.max(0, client_unread_bytes / most_unread_bytes - DAY_SHARE)
  once.lives = math.max(math.min(LEAST_ONCE_S, once.ttl_s), math.floor(once.ttl_s / 2 ^ (excess / HALVING_SHARE)))
end
for n, job in ipairs(args.jobs) do
  if is_new[n] then
    local more = job.reply_to and {'reply_to', job.reply_to} or {}
    if job.keeps_status or not job.reply_to then
      more[#more + 1], more[#more + 2] = 'status', 'queued'
      if once then more[#more + 1], more[#more + 2] = 'lives', once.lives end -- known as long as the key is
    end
    enqueue(lane, client, job.id, job.texts, job.job, more)
  end
end
settle()
if new.jobs > 0 and once then
  call('SET', once_key, cmsgpack.pack({id = args.jobs[1].id, digest = once.digest}), 'EX', once.lives)
  count_once(once_name, client, once.lives)
end
return cmsgpack.pack({status = 'ok', is_new = is_new})
