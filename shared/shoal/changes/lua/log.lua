-- The beginning of scripts that change the log of an index.
-- KEYS: the log, and the hash with a line for each log. ARGV: one msgpack map of named arguments.
local log, lines, args = KEYS[1], KEYS[2], cmsgpack.unpack(ARGV[1])

-- Return the number in a position, and the name of its log: the first 9 of 18 digits after the hyphen, or ''.
local function parts_of(position)
  local number, digits = string.match(position, '^(%d+)%-(%d+)$')
  return tonumber(number), #digits == 18 and string.sub(digits, 1, 9) or ''
end

-- Return the first entry as a map of its fields and its position, or nil if there is no entry.
local function first_of(entries)
  local entry = entries[1]
  if not entry then return nil end
  local found = {}
  for n = 1, #entry[2] - 1, 2 do found[entry[2][n]] = entry[2][n + 1] end
  found.position = entry[1]
  return found
end

-- Return the first entry after the change with this number, or nil; nil also for numbers that are too high.
local function first_after(number)
  if number > 2 ^ 53 then return nil end
  return first_of(redis.call('XRANGE', log, string.format('%.0f-0', number + 1), '+', 'COUNT', 1))
end

-- Return the number in a field of an entry, or nil if no script wrote the field.
local function sum(text)
  return text and #text <= 15 and tonumber(string.match(text, '^%d+$')) or nil
end

-- Return a new line of the log, made from its last entry.
local function line_of_entries()
  local last = first_of(redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)) or {position = '0-0'}
  return {
    position = last.position, num = sum(last.num) or 0, size = sum(last.size) or 0, folded_num = 0, folded_size = 0
  }
end

-- Return the line of the log as a map. A lost line is made again from the last entry.
local function read_line()
  local pattern = '^(%d+%-%d+) (%d+) (%d+) (%d+) (%d+)$'
  local position, num, size, folded_num, folded_size = string.match(redis.call('HGET', lines, args.index) or '', pattern)
  if not position then return line_of_entries() end
  return {
    position = position, num = tonumber(num), size = tonumber(size),
    folded_num = tonumber(folded_num), folded_size = tonumber(folded_size)
  }
end

local function write_line(line)
  local text = string.format('%s %.0f %.0f %.0f %.0f', line.position, line.num, line.size, line.folded_num, line.folded_size)
  redis.call('HSET', lines, args.index, text)
end

