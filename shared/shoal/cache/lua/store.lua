-- Put entries into the cache, each into that of its two places which is empty or nearer to its end.
-- KEYS: for each entry its two places. ARGV: one msgpack map {ttl_s, entries}
-- A cache is worth no disk and no network: the append-only file and the replicas hear nothing of this.
local args = cmsgpack.unpack(ARGV[1])
if redis.replicate_commands then redis.replicate_commands() end -- before version 7 Redis wants to be asked
pcall(redis.set_repl, redis.REPL_NONE)
for n, entry in ipairs(args.entries) do
  local place, other = KEYS[2 * n - 1], KEYS[2 * n]
  if redis.call('PTTL', other) < redis.call('PTTL', place) then place = other end
  redis.call('SET', place, entry, 'EX', args.ttl_s)
end
