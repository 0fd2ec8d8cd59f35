-- The second part of the scripts that producers have copies of: what is wrong with their keys and arguments.
local VERSION = 1 -- of the scripts that producers have copies of, and of their arguments

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
  if kind == 'flag' then return value == nil or found == 'boolean' end
  if kind == 'map' then return found == 'table' end
  if kind == 'list' then return found == 'table' and is_array(value) end
  if kind == 'label' then return found == 'string' and #value <= 256 end
  if kind == 'word' then return found == 'string' and #value <= 256 and value ~= '' end
  return found == 'number' and value >= (kind == 'count' and 1 or 0) and value < 2 ^ 53 and value % 1 == 0
end

-- Return what is wrong with a field of a map of arguments, or nil. `path` is where that map is: words, or the number of a
-- job among the jobs.
local function fault(path, map, name, kind)
  local value = map[name]
  if is_kind(kind, value) then return nil end
  local words = {
    map = 'a map', list = 'an array with at least one element and no nil', flag = 'true or false', bytes = 'a string',
    label = 'a string of at most 256 bytes', word = 'a string of 1 to 256 bytes', name = '1 to 128 of A-Z a-z 0-9 _ . : -',
    count = 'a whole number from 1', amount = 'a whole number from 0'
  }
  if type(path) == 'number' then path = 'jobs[' .. path - 1 .. '].' end
  local found = value == nil and 'missing' or type(value) == 'table' and 'a map or an array' or tostring(value)
  return path .. name .. ' is ' .. string.sub(found, 1, 80) .. ': it takes ' .. words[kind]
end

-- Return what is wrong with the version that a producer takes from the workers' heartbeats, or nil.
local function fault_of_version()
  local wrong = fault('', args, 'version', 'count')
  if wrong or args.version == VERSION then return wrong end
  return 'version is ' .. args.version .. ', and this copy of the script has ' .. VERSION .. ': take a new copy'
end

-- Return what is wrong with the keys of the lane that begin at KEYS[first], or nil.
local function fault_of_lane(first)
  local name = string.match(KEYS[first] or '', ':lane:(%l+)$')
  if name ~= 'interactive' and name ~= 'bulk' then return 'key ' .. first .. ' is not the key of a lane' end
  for n = 2, #LANE_KEYS do
    local wanted = KEYS[first] .. ':' .. LANE_KEYS[n]
    if KEYS[first + n - 1] ~= wanted then return 'key ' .. first + n - 1 .. ' is not ' .. wanted end
  end
end

-- Return the beginning of all keys of the pool.
local function root() return string.match(KEYS[1] or '', '^(.*):lane:') or '' end

-- Return what is wrong if a key is not among KEYS, or nil.
local is_key = {}
for _, key in ipairs(KEYS) do is_key[key] = true end
local function fault_of_key(key)
  if not is_key[key] then return key .. ' is not among the keys: add it' end
end

-- Return what is wrong if a key holds something that a command cannot read, or nil.
local function fault_of_value(command, key, ...)
  local found = redis.pcall(command, key, ...)
  if type(found) == 'table' and found.err then return key .. ' holds something else: ' .. found.err end
end

-- Return what is wrong with the keys of a lane that are read by its scripts alone, or nil.
local function fault_of_values(lane)
  return fault_of_value('HEXISTS', lane.places, '') or fault_of_value('ZCARD', lane.tags)
    or fault_of_value('HEXISTS', lane.load, '')
end

-- Return what is wrong with the keys of all lanes that workers read together, or nil: where one holds something else, no job
-- of any lane is taken. Those of another lane need not be among KEYS, as they are only looked at.
local function fault_of_lanes()
  for _, name in ipairs({'interactive', 'bulk'}) do
    local front = root() .. ':lane:' .. name
    local wrong = fault_of_value('XLEN', front) or fault_of_value('XLEN', front .. ':overflow')
      or fault_of_value('ZCARD', front .. ':waiting')
    if wrong then return wrong end
  end
end

