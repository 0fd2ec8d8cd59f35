-- Write each entry to one of its two places: to an empty place, or to the place that expires sooner.
-- KEYS: for each entry its two places. ARGV: one msgpack map {ttl_s, entries}
-- The writes go neither to the append-only file nor to replicas: a lost cache costs less than disk and network.
local args = cmsgpack.unpack(ARGV[1])
if redis.replicate_commands then redis.replicate_commands() end -- set_repl needs it before version 7
pcall(redis.set_repl, redis.REPL_NONE)
for n, entry in ipairs(args.entries) do
  local place, other = KEYS[2 * n - 1], KEYS[2 * n]
  if redis.call('PTTL', other) < redis.call('PTTL', place) then place = other end
  redis.call('SET', place, entry, 'EX', args.ttl_s)
end
