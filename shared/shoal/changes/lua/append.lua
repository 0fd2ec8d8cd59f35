-- Add a change to the log, unless builds have to fold in others first.
-- args: index, change, num_ids and size (of the change), max_num and max_size (of all changes that are not folded in)
-- Returns {position}, or {num, size} of the changes that are not folded in.
local line = read_line()
local num, size = line.num - line.folded_num, line.size - line.folded_size
if num + args.num_ids > args.max_num or size + args.size > args.max_size then
  return cmsgpack.pack({num = num, size = size})
end

line.num, line.size = line.num + args.num_ids, line.size + args.size
line.position = redis.call('XADD', log, '*', 'change', args.change,
  'num', string.format('%.0f', line.num), 'size', string.format('%.0f', line.size))
write_line(line)
return cmsgpack.pack({position = line.position})
