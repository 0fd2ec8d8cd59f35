-- The beginning of every script: its arguments, and the keys of the pool.
-- KEYS[1]: the root of the pool, such as shoal:{default}, with which all its keys begin (one slot of a cluster).
-- ARGV: one msgpack map of named arguments. A script returns one msgpack map.
local is_read, args = pcall(cmsgpack.unpack, ARGV[1] or '')
if not is_read or type(args) ~= 'table' then
  return redis.error_reply('ERR Redis cannot read the argument, one msgpack map: write byte strings as str, not as bin')
end
if #KEYS ~= 1 then return redis.error_reply('ERR give one key, the root of the pool, such as shoal:{default}') end
local call, ROOT = redis.call, KEYS[1] .. ':'
local UNREAD, UNREAD_LOAD = ROOT .. 'unread', ROOT .. 'unread:load'

local function record_of(id) return ROOT .. 'job:' .. id end

local function now_ms()
  local now = call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

-- The fields of an entry of a stream by name; a field without a value is left out.
local function fields_of(entry)
  local fields = {}
  for n = 1, #entry[2] - 1, 2 do fields[entry[2][n]] = entry[2][n + 1] end
  return fields
end

-- Lower a field of a hash; one that is not above 0 is deleted. If something else has the key, nothing is counted.
local function lower(key, field, amount)
  local left = redis.pcall('HINCRBY', key, field, 0 - amount)
  if type(left) == 'number' and left <= 0 then call('HDEL', key, field) end
end

