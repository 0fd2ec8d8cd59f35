-- Add a change to the log, unless a build must fold in other changes first.
-- args: index, change, num_ids and size (of the change), max_num and max_size (of all changes that are not folded in),
--   digits (18 random digits: 9 for the name of the log, if this is its first change, and 9 for the change)
-- Returns {position}, or {num, size} of the changes that are not folded in.
local line = read_line()
local num, size = line.num - line.folded_num, line.size - line.folded_size
if num + args.num_ids > args.max_num or size + args.size > args.max_size then
  return cmsgpack.pack({num = num, size = size})
end

-- Add the change under the number that follows `number`.
local function add(number)
  local _, name = parts_of(line.position)
  if name == '' then name = string.sub(args.digits, 1, 9) end
  local position = string.format('%.0f-%s%s', number + 1, name, string.sub(args.digits, 10))
  return redis.pcall('XADD', log, position, 'change', args.change, 'after', line.position,
    'num_before', string.format('%.0f', line.num), 'size_before', string.format('%.0f', line.size),
    'num', string.format('%.0f', line.num + args.num_ids), 'size', string.format('%.0f', line.size + args.size))
end

local position = add((parts_of(line.position)))
if type(position) == 'table' then -- another program wrote to the log or its line: go on after the highest id ever used
  line.position = line_of_entries().position
  local later = redis.call('XADD', log, '*', 'x', '')
  redis.call('XDEL', log, later)
  position = add((parts_of(later)))
  if type(position) == 'table' then return position end
end

line.position, line.num, line.size = position, line.num + args.num_ids, line.size + args.size
write_line(line)
return cmsgpack.pack({position = position})
