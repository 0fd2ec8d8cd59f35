-- The beginning of every script. KEYS[1] is the root of the pool, such as shoal:{default}. All keys of the pool begin with it,
-- so they are in one slot of a cluster. ARGV[1] is a msgpack map of named arguments. A script returns one msgpack map.
local is_read, args = pcall(cmsgpack.unpack, ARGV[1] or '')
if not is_read or type(args) ~= 'table' then
  return redis.error_reply('ERR Redis cannot read the argument, one msgpack map: write byte strings as str, not as bin')
end
if #KEYS ~= 1 then return redis.error_reply('ERR give one key, the root of the pool, such as shoal:{default}') end
local call, ROOT = redis.call, KEYS[1] .. ':'

local function now_ms()
  local now = call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

local function record_of(id) return ROOT .. 'job:' .. id end

-- Return fields of a job's record by name. If the key is another program's, return only the client ''.
local function read(id, names)
  local job, found = {}, redis.pcall('HMGET', record_of(id), unpack(names))
  for n, name in ipairs(names) do job[name] = found[n] or nil end
  job.client = job.client or '' -- another program may have deleted it
  return job
end

-- Add to a field of a hash. Delete the field if it is then 0 or less. Do nothing if the key has another type.
local function add(key, field, amount)
  local sum = redis.pcall('HINCRBY', key, field, amount)
  if type(sum) == 'number' and sum <= 0 then call('HDEL', key, field) end
end
