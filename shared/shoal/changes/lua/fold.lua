-- Note which changes the published version has, and remove those that no version needs.
-- args: index, through (the position of the last one that it has), oldest (the first position that stays: the sums of its
--   entry are those of a version which may be published again)
local line, folded = read_line(), last_up_to(args.through)
if line.position == '0-0' then return end
line.folded_num, line.folded_size = folded.num, folded.size
write_line(line)
redis.call('XTRIM', log, 'MINID', args.oldest)
