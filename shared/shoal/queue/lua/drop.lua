-- Delete a dead letter. args: id
local dead, sum_key = ROOT .. 'dead', ROOT .. 'dead:bytes'
local letter, sum = call('XRANGE', dead, args.id, args.id)[1], call('GET', sum_key)
if letter then
  call('XDEL', dead, args.id) -- allowed when memory is full, and what follows a script's first write is too
  if sum then call('SET', sum_key, sum - bytes_of(letter[2]), 'KEEPTTL') end
end
