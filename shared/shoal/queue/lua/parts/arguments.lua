-- A part of the scripts that other programs also run. It refuses bad arguments before anything is written.
local function refuse(message) error('ERR ' .. message, 0) end

-- The kinds of arguments, as messages name them.
local STRING, LABEL, WORD = 'a string', 'a string of at most 256 bytes', 'a string of 1 to 1,024 bytes'
local NAME, LANE, FLAG = '1 to 128 of A-Z a-z 0-9 _ . : -', 'interactive or bulk', 'true or false'
local MAP, LIST = 'a map', 'an array with at least one element and no nil'
local TEXTS, AMOUNT = 'a whole number from 1 to 999,999', 'a whole number from 0'

local function is_of(kind, value) -- faster than a table of functions: put calls this a dozen times
  local found = type(value)
  if kind == NAME then return found == 'string' and #value <= 128 and string.find(value, '^[%w_.:-]+$') end
  if kind == STRING then return found == 'string' end
  if kind == AMOUNT then return found == 'number' and value % 1 == 0 and value >= 0 end
  if kind == TEXTS then return found == 'number' and value % 1 == 0 and value >= 1 and value <= 999999 end
  if kind == LABEL then return found == 'string' and #value <= 256 end
  if kind == WORD then return found == 'string' and #value <= 1024 and value ~= '' end
  if kind == LANE then return value == 'interactive' or value == 'bulk' end
  if kind == FLAG then return found == 'boolean' end
  if kind == MAP then return found == 'table' end
  if found ~= 'table' then return false end -- the remaining kind is a list
  local size = 0
  for _ in pairs(value) do size = size + 1 end
  return size > 0 and size == #value
end

-- Return an argument if it has the kind, or refuse it. `path` is its name in messages, with a placeholder for `n`.
local function check(kind, value, path, n)
  if is_of(kind, value) then return value end
  local found = value == nil and 'missing' or type(value) == 'table' and 'a map or an array' or tostring(value)
  refuse(string.format(path, n) .. ' is ' .. string.sub(found, 1, 80) .. ': it takes ' .. kind)
end

-- Return the result of a reading command; refuse a key of another type.
local function look(command, key, ...)
  local found = redis.pcall(command, key, ...)
  if type(found) ~= 'table' or not found.err then return found end
  if not string.find(found.err, 'WRONGTYPE', 1, true) then error(found.err, 0) end
  refuse(key .. ' holds something else: ' .. found.err)
end

-- The limits for all programs, from the hash in which workers announce them.
local BEFORE_WORKERS = {
  max_jobs = 10000, max_texts = 100000, max_bytes = 268435456, max_put_bytes = 33554432, max_unread_bytes = 268435456,
  result_ttl_s = 3600
}

local function limits_of(...)
  local limits, found = {}, look('HMGET', ROOT .. 'limits', ...)
  for n, name in ipairs({...}) do
    limits[name] = check(AMOUNT, tonumber(found[n] or BEFORE_WORKERS[name]), ROOT .. 'limits.%s', name)
  end
  return limits
end

-- Return the result of the script's function, or an error reply if it refuses or fails. An error keeps its code, such as OOM.
local function run(transition)
  local is_root = string.find(KEYS[1], '^[^{}]*{[^{}]+}$')
  if not is_root then return redis.error_reply('ERR the key is no root of a pool, such as shoal:{default}') end
  local is_done, result = pcall(transition)
  if is_done then return cmsgpack.pack(result) end
  local message = string.match(result, '%u%u%u+ .*') -- Redis 6.2 puts the script's line before the code
  return message and redis.error_reply(message) or error(result, 0)
end
