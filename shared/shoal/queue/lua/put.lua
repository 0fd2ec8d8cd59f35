-- Add the jobs of a client to a lane: all of them or, where the lane would hold too much, none.
-- KEYS: those of the lane; the load of the unread results; for jobs without a reply address the record of each; with args.once the idempotency key.
-- args: client, max_jobs, max_texts, max_bytes, max_front_texts, max_front_bytes, max_unread_bytes, has_records,
--   jobs: list of {id, job (its bytes), texts (their number)}, once (optional): {digest, ttl_s}
-- Returns one of
--   {status = 'ok', entries}: for each job its place, {stream, entry}, or {is_known} if it was there already;
--   {status = 'known', id}: the job that the idempotency key was used for;
--   {status = 'reused', id}: the same, where that job asks something else;
--   {status = 'full', share, jobs, texts, bytes}: the share of the lane's limits for this client, and the lane's load;
--   {status = 'unread', bytes, client_bytes}: the bytes of the unread results of all clients, and of this one.
local RESERVED_SHARE = 1 / 8 -- of a lane, for clients with all their jobs at its front: no client fills it for all others
local LONG_JOB_SHARE = 1 / 8 -- of what a client may have at the front: a longer job goes to the overflow
local UNREAD_LOAD = #LANE_KEYS + 1
local FIRST_RECORD = UNREAD_LOAD + 1

local lane = lane_at(1)
local once_key = args.once and KEYS[#KEYS]
local used = once_key and redis.call('GET', once_key)
if used then
  used = cmsgpack.unpack(used)
  return cmsgpack.pack({status = used.digest == args.once.digest and 'known' or 'reused', id = used.id})
end

local function is_long(job)
  return job.texts > LONG_JOB_SHARE * args.max_front_texts or #job.job > LONG_JOB_SHARE * args.max_front_bytes
end

local function record_of(n) return args.has_records and KEYS[FIRST_RECORD + n - 1] end

local held = {jobs = redis.call('XLEN', lane.overflow) + redis.call('ZCARD', lane.waiting)}
local has_overflow = held.jobs > 0
held.jobs = held.jobs + redis.call('XLEN', lane.front)

local new, seen = {jobs = 0, texts = 0, bytes = 0}, {}
for n, job in ipairs(args.jobs) do
  if not string.match(tostring(job.texts), '^%d%d?%d?%d?%d?%d?$') then
    return redis.error_reply('ERR texts takes a number of up to 6 digits')
  end
  local is_known = seen[job.id] or record_of(n) and redis.call('EXISTS', record_of(n)) == 1
  job.is_new = not is_known and not (has_overflow and redis.call('HEXISTS', lane.places, job.id) == 1)
  seen[job.id] = true
  if job.is_new then
    new.jobs, new.texts, new.bytes = new.jobs + 1, new.texts + job.texts, new.bytes + #job.job
    new.has_long = new.has_long or is_long(job)
  end
end

local client, client_bytes = 'client:' .. args.client, 'client bytes:' .. args.client
local loads = redis.call('HMGET', lane.load, 'texts', 'bytes', client, client_bytes)
local is_stale = held.jobs == 0 and (loads[1] or loads[2] or loads[3] or loads[4]) -- of jobs that no script has removed
if is_stale then loads = {} end
held.texts, held.bytes = tonumber(loads[1] or 0), tonumber(loads[2] or 0)
local front = {texts = tonumber(loads[3] or 0), bytes = tonumber(loads[4] or 0)}

local unread = args.has_records and redis.call('HMGET', KEYS[UNREAD_LOAD], 'bytes', client) or {}
local unread_bytes, client_unread_bytes = tonumber(unread[1] or 0), tonumber(unread[2] or 0)
if args.has_records and new.jobs > 0 and client_unread_bytes >= args.max_unread_bytes - unread_bytes then
  return cmsgpack.pack({status = 'unread', bytes = unread_bytes, client_bytes = client_unread_bytes})
end

local function fits_at_front(texts, bytes)
  return front.texts + texts <= args.max_front_texts and front.bytes + bytes <= args.max_front_bytes
end

local share = not new.has_long and fits_at_front(new.texts, new.bytes) and 1 or 1 - RESERVED_SHARE
for _, what in ipairs({'jobs', 'texts', 'bytes'}) do
  if new.jobs > 0 and held[what] + new[what] > share * args['max_' .. what] then
    return cmsgpack.pack({status = 'full', share = share, jobs = held.jobs, texts = held.texts, bytes = held.bytes})
  end
end

local adds_to_overflow = false

local function put_at_front(job)
  front.texts, front.bytes = front.texts + job.texts, front.bytes + #job.job
  local entry = redis.call('XADD', lane.front, '*', 'job', job.job, 'texts', job.texts, 'id', job.id,
    'client', args.client)
  return {stream = lane.front, entry = entry}
end

local function put_into_overflow(job)
  adds_to_overflow = true
  local now = redis.call('TIME')
  local virtual_time = tonumber(redis.call('ZSCORE', lane.tags, VIRTUAL_TIME) or 0)
  local tag = math.max(virtual_time, tonumber(redis.call('ZSCORE', lane.tags, client) or 0))
  redis.call('ZADD', lane.tags, tag + math.max(1, job.texts), client)
  redis.call('ZADD', lane.waiting, tag, job.id)
  local put_ms = now[1] .. string.format('%03d', math.floor(now[2] / 1000))
  redis.call('HSET', lane.places, job.id, cmsgpack.pack({job = job.job, texts = job.texts, put_ms = put_ms}))
  return {stream = lane.overflow, entry = job.id}
end

if new.jobs > 0 and is_stale then
  redis.call('HSET', lane.load, 'texts', 0) -- fails if memory is full, before anything is written
  redis.call('DEL', lane.load, lane.places, lane.tags)
end
local entries = {}
for n, job in ipairs(args.jobs) do
  entries[n] = {is_known = true}
  if job.is_new then
    entries[n] = fits_at_front(job.texts, #job.job) and not is_long(job) and put_at_front(job) or put_into_overflow(job)
    if record_of(n) then
      local place = {'stream', entries[n].stream, 'entry', entries[n].entry}
      redis.call('HSET', record_of(n), 'status', 'queued', 'client', args.client, unpack(place))
      if once_key then redis.call('HSET', record_of(n), 'lives', args.once.ttl_s) end -- known as long as the key is
    end
  end
end
if new.jobs > 0 then
  local fields = {'texts', held.texts + new.texts, 'bytes', held.bytes + new.bytes}
  for name, amount in pairs({[client] = front.texts, [client_bytes] = front.bytes}) do
    if amount > 0 then fields[#fields + 1], fields[#fields + 2] = name, amount end
  end
  redis.call('HSET', lane.load, unpack(fields))
  if once_key then
    redis.call('SET', once_key, cmsgpack.pack({id = args.jobs[1].id, digest = args.once.digest}), 'EX', args.once.ttl_s)
  end
  if adds_to_overflow then refill(lane) end
end
return cmsgpack.pack({status = 'ok', entries = entries})
