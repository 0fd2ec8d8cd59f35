-- The beginning of the scripts that change the log of an index.
-- KEYS: the log, and the hash with a line for each log. ARGV: one msgpack map of named arguments.
local log, lines, args = KEYS[1], KEYS[2], cmsgpack.unpack(ARGV[1])

-- The last entry up to a position, with the sums that it has.
local function last_up_to(position)
  local last = {position = '0-0', num = 0, size = 0}
  local entry = redis.call('XREVRANGE', log, position, '-', 'COUNT', 1)[1]
  if entry then
    last.position = entry[1]
    for n = 1, #entry[2] - 1, 2 do
      local name, value = entry[2][n], entry[2][n + 1]
      if name == 'num' or name == 'size' then last[name] = tonumber(string.match(value, '^%d+$')) or 0 end
    end
  end
  return last
end

-- What the line of the log says. A line that is lost is made anew of the last entry.
local function read_line()
  local pattern = '^(%d+%-%d+) (%d+) (%d+) (%d+) (%d+)$'
  local position, num, size, folded_num, folded_size = string.match(redis.call('HGET', lines, args.index) or '', pattern)
  if not position then
    local last = last_up_to('+')
    position, num, size, folded_num, folded_size = last.position, last.num, last.size, 0, 0
  end
  return {
    position = position, num = tonumber(num), size = tonumber(size),
    folded_num = tonumber(folded_num), folded_size = tonumber(folded_size)
  }
end

local function write_line(line)
  local text = string.format('%s %.0f %.0f %.0f %.0f', line.position, line.num, line.size, line.folded_num, line.folded_size)
  redis.call('HSET', lines, args.index, text)
end

