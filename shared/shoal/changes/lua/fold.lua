-- Note which changes the published version contains, and delete changes that all kept versions contain.
-- args: index, through (the position of the last change in the published version), kept (the same for each kept version)
local line = read_line()
if line.position == '0-0' then return end

local number, name = parts_of(args.through)
local _, here = parts_of(line.position)
local first = first_after(name == here and number or 0) -- a position in another log includes no change of this log
line.folded_num, line.folded_size = line.num, line.size
if first then line.folded_num, line.folded_size = sum(first.num_before) or 0, sum(first.size_before) or 0 end
write_line(line)

local lowest
for _, position in ipairs(args.kept) do
  local kept = parts_of(position)
  local following = first_after(kept)
  if (following and following.after or line.position) ~= position then return end -- this version may need any change
  if not lowest or kept < lowest then lowest = kept end
end
if lowest then redis.call('XTRIM', log, 'MINID', string.format('%.0f-0', lowest + 1)) end
