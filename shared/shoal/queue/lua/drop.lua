-- Delete a dead letter.
-- KEYS: the stream of dead letters, the key with their bytes. args: id
local dead, sum_key = KEYS[1], KEYS[2]
local letter, sum = redis.call('XRANGE', dead, args.id, args.id)[1], redis.call('GET', sum_key)
if letter then
  redis.call('XDEL', dead, args.id) -- allowed when memory is full, and what follows a script's first write is too
  if sum then redis.call('SET', sum_key, sum - bytes_of(letter[2]), 'KEEPTTL') end
end
