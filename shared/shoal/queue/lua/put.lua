-- Add the jobs of a client to a lane: all of them or, where the lane would hold too much, none.
-- KEYS: those of the lane, then in any order the load of the unread results, the record of each job that has one, and with
--   args.once the unread results and the idempotency key.
-- args: version, client, limits: {max_jobs, max_texts, max_bytes, max_front_texts, max_front_bytes, max_put_bytes,
--   max_unread_bytes},
--   jobs: list of {id, job (its bytes), texts (their number), has_record, reply_to (of a job with both)},
--   once (optional, for one job): {name, digest, ttl_s}
-- Returns one of
--   {status = 'ok', entries}: for each job its place, {stream, entry}, or {is_known} if it was there already;
--   {status = 'known', id}: the job that the idempotency key was used for;
--   {status = 'reused', id}: the same, where that job asks something else;
--   {status = 'full', share, exceeded, jobs, texts, bytes}: the share of the lane's limits for this client, which of the
--     limits is exceeded, and the lane's load;
--   {status = 'unread', bytes, client_bytes, most}: the bytes of the unread results and idempotency keys of all clients, and
--     of this one, which must have less than `most`;
--   {status = 'too_large', exceeded, most}: no put may have more than so many jobs, texts or bytes.
local RESERVED_SHARE = 1 / 8 -- of a lane, for clients with all their jobs at its front: no client fills it for all others
local LONG_JOB_SHARE = 1 / 4 -- of what a client may have at the front: a longer job goes to the overflow
local SHORT_JOB_SHARE = 1 / 8 -- of the texts that a client may have there: jobs of so many keep their order
local UNREAD_FLOOR = 1 / 64 -- of max_unread_bytes: a client with less is not refused for the unread results of others
local DAY_SHARE = 1 / 4 -- of the bytes that a client may have: with less, idempotency keys live for as long as is asked
local HALVING_SHARE = 1 / 24 -- for each of which beyond that a key lives half as long
local LEAST_ONCE_S = 60 -- that a key lives however much the client has
local NEWCOMERS = 'new clients' -- a member of the tags: all clients together that have no tag there
local NEWCOMERS_SHARE = 8 -- of newcomers together for one of another client: names that are invented do not go before all
local MAX_TEXTS = 999999 -- of a job
local LIMITS = {
  'max_jobs', 'max_texts', 'max_bytes', 'max_front_texts', 'max_front_bytes', 'max_put_bytes', 'max_unread_bytes'
}

local pool = root()
local unread = {results = pool .. ':unread', load = pool .. ':unread:load'}

local function fault_of_job(n, job)
  if type(job) ~= 'table' then return 'jobs[' .. n - 1 .. '] is no map' end
  local wrong = fault(n, job, 'id', 'name') or fault(n, job, 'job', 'bytes') or fault(n, job, 'texts', 'count')
    or fault(n, job, 'has_record', 'flag') or job.reply_to ~= nil and fault(n, job, 'reply_to', 'name')
  if wrong then return wrong end
  if job.texts > MAX_TEXTS then
    return 'jobs[' .. n - 1 .. '].texts is ' .. job.texts .. ': it takes at most ' .. MAX_TEXTS
  end
  if job.has_record then
    job.record = pool .. ':job:' .. job.id
    return fault_of_key(job.record)
  end
end

local function fault_of_once(once)
  local wrong = fault('', args, 'once', 'map') or fault('once.', once, 'name', 'name')
    or fault('once.', once, 'digest', 'word') or fault('once.', once, 'ttl_s', 'count')
  if wrong then return wrong end
  if #args.jobs > 1 then return 'once goes with one job, and jobs has ' .. #args.jobs end
  once.key = pool .. ':once:' .. once.name
  return fault_of_key(once.key) or fault_of_key(unread.results) or fault_of_value('ZCARD', unread.results)
end

local wrong = fault_of_version() or fault_of_lane(1) or fault('', args, 'client', 'label')
  or fault('', args, 'limits', 'map') or fault('', args, 'jobs', 'list') or fault_of_key(unread.load)
for _, name in ipairs(LIMITS) do wrong = wrong or fault('limits.', args.limits, name, 'amount') end
if not wrong and #args.jobs > args.limits.max_jobs then
  return cmsgpack.pack({status = 'too_large', exceeded = 'jobs', most = args.limits.max_jobs})
end
for n, job in ipairs(wrong and {} or args.jobs) do wrong = wrong or fault_of_job(n, job) end
local once, lane, limits = args.once, lane_at(1), args.limits
wrong = wrong or once ~= nil and fault_of_once(once)
  or fault_of_lanes() or fault_of_values(lane) or fault_of_value('HEXISTS', unread.load, '')
if wrong then return redis.error_reply('ERR ' .. wrong) end

local kept = once and redis.call('GET', once.key)
if kept then
  local is_known, used = pcall(cmsgpack.unpack, kept)
  if not is_known or type(used) ~= 'table' or not used.id then
    return redis.error_reply('ERR ' .. once.key .. ' holds something else: choose another name')
  end
  return cmsgpack.pack({status = used.digest == once.digest and 'known' or 'reused', id = used.id})
end

local function is_long(job)
  return job.texts > LONG_JOB_SHARE * limits.max_front_texts or #job.job > LONG_JOB_SHARE * limits.max_front_bytes
end

local held = {jobs = redis.call('XLEN', lane.overflow) + redis.call('ZCARD', lane.waiting)}
local has_overflow = held.jobs > 0
held.jobs = held.jobs + redis.call('XLEN', lane.front)

local new, seen, has_results = {jobs = 0, texts = 0, bytes = 0}, {}, false
for _, job in ipairs(args.jobs) do
  local is_known = seen[job.id] or job.record and redis.call('EXISTS', job.record) == 1
  job.is_new = not is_known and not (has_overflow and redis.call('HEXISTS', lane.places, job.id) == 1)
  seen[job.id] = true
  if job.is_new then
    new.jobs, new.texts, new.bytes = new.jobs + 1, new.texts + job.texts, new.bytes + #job.job
    new.has_long = new.has_long or is_long(job)
    has_results = has_results or job.has_record and not job.reply_to
  end
end

local client, client_bytes = 'client:' .. args.client, 'client bytes:' .. args.client
local loads = redis.call('HMGET', lane.load, 'texts', 'bytes', client, client_bytes)
local is_stale = held.jobs == 0 and (loads[1] or loads[2] or loads[3] or loads[4]) -- of jobs that no script has removed
if is_stale then loads = {} end
held.texts, held.bytes = tonumber(loads[1] or 0), tonumber(loads[2] or 0)
local front = {texts = tonumber(loads[3] or 0), bytes = tonumber(loads[4] or 0)}

local counts = has_results or once
local counted = counts and redis.call('HMGET', unread.load, 'bytes', client) or {}
local unread_bytes, client_unread_bytes = tonumber(counted[1] or 0), tonumber(counted[2] or 0)
local most_unread_bytes =
  math.max(math.floor(UNREAD_FLOOR * limits.max_unread_bytes), limits.max_unread_bytes - unread_bytes)
if counts and client_unread_bytes >= most_unread_bytes then
  local refusal = {status = 'unread', bytes = unread_bytes, client_bytes = client_unread_bytes}
  refusal.most = most_unread_bytes
  return cmsgpack.pack(refusal)
end

-- Short jobs of a client have a tag of their own. While one of them waits, later ones wait behind it, and the front is left
-- to other clients.
local function tag_of(job)
  return (job.texts <= SHORT_JOB_SHARE * limits.max_front_texts and 'short:' or 'client:') .. args.client
end

local short_waits = has_overflow and redis.call('ZSCORE', lane.tags, 'short:' .. args.client)

local function fits_at_front(texts, bytes)
  return front.texts + texts <= limits.max_front_texts and front.bytes + bytes <= limits.max_front_bytes
end

local function goes_to_front(job)
  local keeps_order = short_waits and tag_of(job) ~= client
  return fits_at_front(job.texts, #job.job) and not is_long(job) and not keeps_order
end

local function share_of(texts, bytes)
  local fits = texts <= limits.max_front_texts and bytes <= limits.max_front_bytes
  return fits and not new.has_long and 1 or 1 - RESERVED_SHARE
end

local share, empty_share = share_of(front.texts + new.texts, front.bytes + new.bytes), share_of(new.texts, new.bytes)
local exceeded
for what, limit in pairs({jobs = limits.max_jobs, texts = limits.max_texts, bytes = limits.max_bytes}) do
  local most = math.floor(empty_share * limit)
  if what == 'bytes' then most = math.min(most, limits.max_put_bytes) end
  if new[what] > most then return cmsgpack.pack({status = 'too_large', exceeded = what, most = most}) end
  if new.jobs > 0 and held[what] + new[what] > share * limit then exceeded = what end
end
if exceeded then
  local load = {jobs = held.jobs, texts = held.texts, bytes = held.bytes}
  load.status, load.share, load.exceeded = 'full', share, exceeded
  return cmsgpack.pack(load)
end

local adds_to_overflow = false

local function put_at_front(job)
  front.texts, front.bytes = front.texts + job.texts, front.bytes + #job.job
  local entry
  if job.has_record then
    entry = redis.call('XADD', lane.front, '*', 'job', job.job, 'texts', job.texts, 'id', job.id,
      'client', args.client, 'record', 1)
  else
    entry = redis.call('XADD', lane.front, '*', 'job', job.job, 'texts', job.texts, 'id', job.id,
      'client', args.client)
  end
  return {stream = lane.front, entry = entry}
end

local function put_into_overflow(job)
  adds_to_overflow = true
  local now = redis.call('TIME')
  local owner = tag_of(job)
  short_waits = short_waits or owner ~= client
  local own_tag = redis.call('ZSCORE', lane.tags, owner)
  local least_tag = own_tag or redis.call('ZSCORE', lane.tags, NEWCOMERS) or 0
  local tag = math.max(tonumber(redis.call('ZSCORE', lane.tags, VIRTUAL_TIME) or 0), tonumber(least_tag))
  redis.call('ZADD', lane.tags, tag + job.texts, owner)
  if not own_tag then redis.call('ZADD', lane.tags, tag + job.texts / NEWCOMERS_SHARE, NEWCOMERS) end
  redis.call('ZADD', lane.waiting, tag, job.id)
  local put_ms = now[1] .. string.format('%03d', math.floor(now[2] / 1000))
  local place = {job = job.job, texts = job.texts, put_ms = put_ms, put_by = args.client, has_record = job.has_record}
  redis.call('HSET', lane.places, job.id, cmsgpack.pack(place))
  return {stream = lane.overflow, entry = job.id}
end

if new.jobs > 0 and is_stale then
  redis.call('HSET', lane.load, 'texts', 0) -- fails if memory is full, before anything is written
  redis.call('DEL', lane.load, lane.places, lane.tags)
end
if once then
  local excess = math.max(0, client_unread_bytes / most_unread_bytes - DAY_SHARE)
  once.lives = math.max(math.min(LEAST_ONCE_S, once.ttl_s), math.floor(once.ttl_s / 2 ^ (excess / HALVING_SHARE)))
end
local entries = {}
for n, job in ipairs(args.jobs) do
  entries[n] = {is_known = true}
  if job.is_new then
    entries[n] = goes_to_front(job) and put_at_front(job) or put_into_overflow(job)
    if job.record then
      local place = {'stream', entries[n].stream, 'entry', entries[n].entry}
      redis.call('HSET', job.record, 'status', 'queued', 'client', args.client, unpack(place))
      if job.reply_to then redis.call('HSET', job.record, 'reply_to', job.reply_to) end
      if once then redis.call('HSET', job.record, 'lives', once.lives) end -- known as long as the key is
      redis.call('EXPIRE', job.record, RECORD_TTL_S)
    end
  end
end
if new.jobs > 0 then
  local fields = {'texts', held.texts + new.texts, 'bytes', held.bytes + new.bytes}
  for name, amount in pairs({[client] = front.texts, [client_bytes] = front.bytes}) do
    if amount > 0 then fields[#fields + 1], fields[#fields + 2] = name, amount end
  end
  redis.call('HSET', lane.load, unpack(fields))
  if once then
    redis.call('SET', once.key, cmsgpack.pack({id = args.jobs[1].id, digest = once.digest}), 'EX', once.lives)
    count_once(unread, once.name, args.client, once.lives)
  end
  if adds_to_overflow then refill(lane) end
end
return cmsgpack.pack({status = 'ok', entries = entries})
