-- Put entries into the cache, each into that of its two places which is empty or nearer to its end.
-- KEYS: for each entry its two places
-- ARGV: seconds that an entry lives, then the entries
-- A cache is worth no disk and no network: the append-only file and the replicas hear nothing of this.
if redis.replicate_commands then redis.replicate_commands() end -- before version 7 Redis wants to be asked
pcall(redis.set_repl, redis.REPL_NONE)
for n = 1, #ARGV - 1 do
  local place, other = KEYS[2 * n - 1], KEYS[2 * n]
  if redis.call('PTTL', other) < redis.call('PTTL', place) then place = other end
  redis.call('SET', place, ARGV[n + 1], 'EX', ARGV[1])
end
