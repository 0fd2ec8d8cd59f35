-- The second part of the scripts that other programs run too: what is wrong with their arguments.

-- Return true if a value is an array: a nil among the elements would hide those after it.
local function is_array(value)
  local num_elements = 0
  for _ in pairs(value) do num_elements = num_elements + 1 end
  for n = 1, num_elements do
    if value[n] == nil then return false end
  end
  return num_elements > 0
end

-- Return true if a value is of the kind that an argument takes. Put runs this a dozen times for each job.
local function is_kind(kind, value)
  local found = type(value)
  if kind == 'bytes' then return found == 'string' end
  if kind == 'name' then
    return found == 'string' and #value <= 128 and string.find(value, '^[%w_.:-]+$') ~= nil
  end
  if kind == 'lane' then return value == 'interactive' or value == 'bulk' end
  if kind == 'flag' then return value == nil or found == 'boolean' end
  if kind == 'map' then return found == 'table' end
  if kind == 'list' then return found == 'table' and is_array(value) end
  if kind == 'label' then return found == 'string' and #value <= 256 end
  if kind == 'word' then return found == 'string' and #value <= 1024 and value ~= '' end
  return found == 'number' and value >= (kind == 'count' and 1 or 0) and value < 2 ^ 53 and value % 1 == 0
end

-- Return what is wrong with a field of a map of arguments, or nil. `path` is where that map is: words, or the number of a
-- job among the jobs.
local function fault(path, map, name, kind)
  local value = map[name]
  if is_kind(kind, value) then return nil end
  local words = {
    map = 'a map', list = 'an array with at least one element and no nil', flag = 'true or false', bytes = 'a string',
    label = 'a string of at most 256 bytes', word = 'a string of 1 to 1,024 bytes', name = '1 to 128 of A-Z a-z 0-9 _ . : -',
    lane = 'interactive or bulk', count = 'a whole number from 1', amount = 'a whole number from 0'
  }
  if type(path) == 'number' then path = 'jobs[' .. path - 1 .. '].' end
  local found = value == nil and 'missing' or type(value) == 'table' and 'a map or an array' or tostring(value)
  return path .. name .. ' is ' .. string.sub(found, 1, 80) .. ': it takes ' .. words[kind]
end

-- Return what is wrong with the root of the pool, or nil.
local function fault_of_root()
  if not string.find(KEYS[1], '^[^{}]*{[^{}]+}$') then return 'the key is no root of a pool, such as shoal:{default}' end
end

-- Return what is wrong if a key holds something that a command cannot read, or nil.
local function fault_of_value(command, key, ...)
  local found = redis.pcall(command, key, ...)
  if type(found) == 'table' and found.err then return key .. ' holds something else: ' .. found.err end
end

