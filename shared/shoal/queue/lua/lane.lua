-- The beginning of every script that touches a lane: its arguments, the keys of the lanes, and the functions that several scripts use.
-- ARGV: one msgpack map of named arguments. A script returns one msgpack map.
local GROUP = 'workers'
local LANE_KEYS = {'front', 'overflow', 'waiting', 'places', 'tags', 'load'}
local VIRTUAL_TIME = 'virtual time' -- a member of the tags; clients' names there begin with 'client:' or 'short:'
local RESULT_KEYS_BYTES = 1024 -- that Redis needs for the keys of a result, beside those of the reply
local ONCE_BYTES = 1024 -- that Redis needs for an idempotency key and the record that lives as long
local FIRST_SWEEP_S = 1 -- after which it is looked whether an unread result is still there
local HEAD_BYTES = 65536 -- the beginning of a job, by which it is told from others

local RECORD_TTL_S = 604800 -- of a job that is not answered; a lost job leaves no record behind for ever

local is_read, args = pcall(cmsgpack.unpack, ARGV[1] or '')
if not is_read or type(args) ~= 'table' then
  return redis.error_reply('ERR Redis cannot read the argument, one msgpack map: write byte strings as str, not as bin')
end

-- The keys of a lane by name, which begin at KEYS[first].
local function lane_at(first)
  local lane = {}
  for n, name in ipairs(LANE_KEYS) do lane[name] = KEYS[first + n - 1] end
  return lane
end

-- The lanes by name: the first keys are those of each lane in args.lanes.
local function lanes_by_name()
  local lanes = {}
  for n, name in ipairs(args.lanes) do lanes[name] = lane_at((n - 1) * #LANE_KEYS + 1) end
  return lanes
end

-- The fields of an entry by name; a field without a value is left out.
local function fields_of(entry)
  local fields = {}
  for n = 1, #entry[2] - 1, 2 do fields[entry[2][n]] = entry[2][n + 1] end
  return fields
end

-- The fields of an entry, or nil if it is not in the stream.
local function read(stream, entry)
  local found = redis.call('XRANGE', stream, entry, entry)[1]
  return found and fields_of(found)
end

-- True if an entry with these fields holds the job of that identity: its id or, if no script added it, the SHA-1 of its
-- first bytes. The id of an entry says too little: after a failover another job may have it.
local function holds(fields, identity)
  return identity == (fields.id or redis.sha1hex(string.sub(fields.job or '', 1, HEAD_BYTES)))
end

-- The number of texts in an entry that a script added; nil for other entries.
local function count_of(fields)
  return fields.job and tonumber(string.match(fields.texts or '', '^%d%d?%d?%d?%d?%d?$'))
end

local function lower(load, field, amount)
  if redis.call('HINCRBY', load, field, 0 - amount) <= 0 then redis.call('HDEL', load, field) end
end

-- The results that are not read and the idempotency keys that are remembered, from KEYS[first] on: a sorted set of them,
-- each with the Unix time of the next look at it, and a hash with their numbers and bytes, and the bytes of each client.
local function unread_at(first) return {results = KEYS[first], load = KEYS[first + 1]} end

-- The client that put a job, as its record says; the empty name for a job that no script put.
local function client_of(record)
  local client = redis.pcall('HGET', record, 'client') -- a table if something else has the name of the record
  return type(client) == 'string' and client or ''
end

-- The member of the set that stands for a result: all that is needed to count it no longer.
local function name_of_unread(id, reply_bytes, client)
  return id .. ' ' .. reply_bytes + RESULT_KEYS_BYTES .. ' ' .. client
end

-- Let the counts live so many seconds or, if they do by now, longer: programs may keep their results for different times.
-- It is allowed when memory is full, and what follows a script's first write is too.
local function keep_unread(unread, ttl_s)
  for _, key in pairs(unread) do
    redis.call('EXPIRE', key, math.max(ttl_s, math.ceil(redis.call('PTTL', key) / 1000)))
  end
end

-- Count a member of the set for a client. Both keys live for so many seconds at least.
local function count(unread, member, what, num_bytes, client, look_in_s, ttl_s)
  if redis.call('ZADD', unread.results, redis.call('TIME')[1] + look_in_s, member) == 1 then
    redis.call('HINCRBY', unread.load, what, 1)
    redis.call('HINCRBY', unread.load, 'bytes', num_bytes)
    redis.call('HINCRBY', unread.load, 'client:' .. client, num_bytes)
  end
  keep_unread(unread, ttl_s)
end

-- Count a result that was written for a client.
local function count_unread(unread, id, client, reply, result_ttl_s)
  local result = name_of_unread(id, #reply, client)
  count(unread, result, 'results', #reply + RESULT_KEYS_BYTES, client, FIRST_SWEEP_S, result_ttl_s)
end

-- Count an idempotency key of a client that is remembered for so many seconds. Its member begins like that of no result.
local function count_once(unread, name, client, ttl_s)
  count(unread, '=' .. name .. ' ' .. ONCE_BYTES .. ' ' .. client, 'keys', ONCE_BYTES, client, ttl_s, ttl_s)
end

-- Count a result or an idempotency key no longer, if it was counted.
local function uncount_unread(unread, member)
  if redis.call('ZREM', unread.results, member) == 0 then return end
  local num_bytes, client = string.match(member, '^%S+ (%d+) (.*)$')
  lower(unread.load, string.sub(member, 1, 1) == '=' and 'keys' or 'results', 1)
  lower(unread.load, 'bytes', num_bytes)
  lower(unread.load, 'client:' .. client, num_bytes)
end

-- Tell the processes that wait for the result of a job, at the addresses that its record names.
local function tell_watchers(record, ttl_s)
  local pool, id = string.match(record, '^(.-}):job:(.*)$')
  for address in string.gmatch(redis.call('HGET', record, 'watchers') or '', '%S+') do
    redis.pcall('XADD', pool .. ':replies:' .. address, '*', 'answered', id)
    redis.call('EXPIRE', pool .. ':replies:' .. address, ttl_s)
  end
end

-- Set the final status of a submitted job, and let its record expire.
local function conclude(record, status, result_ttl_s, timings)
  local kept = redis.pcall('HSET', record, 'status', status, 'timings', timings)
  if type(kept) == 'table' then return end -- something else has the name of the record
  redis.call('EXPIRE', record, math.max(result_ttl_s, redis.call('HGET', record, 'lives') or 0))
  tell_watchers(record, result_ttl_s)
end

-- Move the next of the waiting jobs to the overflow stream. Start-time fair queueing (Goyal, Vin and
-- Cheng, 1996): a job's tag is the virtual time at which it may start, and the least tag is next.
local function promote(lane)
  local id, tag = unpack(redis.call('ZPOPMIN', lane.waiting)) -- frees memory, so a full Redis allows what follows
  local packed = redis.call('HGET', lane.places, id)
  if packed then
    local job = cmsgpack.unpack(packed)
    local fields = {'job', job.job, 'texts', job.texts, 'id', id, 'put_ms', job.put_ms}
    if job.put_by then fields[#fields + 1], fields[#fields + 2] = 'put_by', job.put_by end -- older programs put without
    if job.has_record then fields[#fields + 1], fields[#fields + 2] = 'record', 1 end
    local entry = redis.call('XADD', lane.overflow, '*', unpack(fields))
    redis.call('HSET', lane.places, id, cmsgpack.pack({entry = entry}))
  end
  if redis.call('ZCARD', lane.waiting) == 0 then
    redis.call('DEL', lane.tags)
  else
    redis.call('ZADD', lane.tags, tag, VIRTUAL_TIME)
    redis.call('ZREMRANGEBYSCORE', lane.tags, '-inf', '(' .. tag) -- a client's tag in the past says nothing
  end
end

local function has_unread(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream) -- an error, of length 0, if there is no stream
  for _, group in ipairs(groups) do
    local about = {}
    for n = 1, #group, 2 do about[group[n]] = group[n + 1] end
    if about.name == GROUP then
      return #redis.call('XRANGE', stream, '(' .. about['last-delivered-id'], '+', 'COUNT', 1) > 0
    end
  end
  return redis.call('XLEN', stream) > 0
end

-- Keep one job of the overflow unread for as long as any wait: a worker that blocks on the stream is then woken.
local function refill(lane)
  while redis.call('ZCARD', lane.waiting) > 0 and not has_unread(lane.overflow) do promote(lane) end
end

-- Take an entry with these fields out of its stream, and its job out of the load of the lane.
-- An entry that no script added was not counted, and has no `texts`.
local function release(lane, stream, entry, fields)
  redis.call('XDEL', stream, entry)
  local texts = count_of(fields)
  if texts then
    lower(lane.load, 'texts', texts)
    lower(lane.load, 'bytes', #fields.job)
    if fields.client then
      lower(lane.load, 'client:' .. fields.client, texts)
      lower(lane.load, 'client bytes:' .. fields.client, #fields.job)
    end
    if fields.id and stream == lane.overflow then redis.call('HDEL', lane.places, fields.id) end
  end
end

-- Take a job back by its id, wherever it is by now: waiting, in its stream, or with a worker. `entry` is that of a job at
-- the front. Returns true if the job was still there.
local function take_back(lane, stream, entry, id)
  if stream == lane.overflow then
    local packed = redis.call('HGET', lane.places, id)
    if not packed then return false end
    local place = cmsgpack.unpack(packed)
    redis.call('HDEL', lane.places, id)
    if redis.call('ZREM', lane.waiting, id) == 1 then
      if redis.call('ZCARD', lane.waiting) == 0 then redis.call('DEL', lane.tags) end
      lower(lane.load, 'texts', place.texts)
      lower(lane.load, 'bytes', #place.job)
      return true
    end
    entry = place.entry
  end
  local fields = read(stream, entry)
  if fields and not holds(fields, id) then return false end
  redis.call('XACK', stream, GROUP, entry)
  if fields then release(lane, stream, entry, fields) end
  if stream == lane.overflow then refill(lane) end
  return fields ~= nil
end

