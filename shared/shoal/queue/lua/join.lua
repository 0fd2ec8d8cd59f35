-- Make streams and their consumer group where they are missing, and forget workers that are long gone: each that starts
-- has a new name. A name with pending jobs stays, and one that is used again comes back by itself.
-- KEYS: the streams. args: forget_after_ms
for _, stream in ipairs(KEYS) do
  redis.call('PERSIST', stream) -- allowed when memory is full, and what follows a script's first write is too
  local answer = redis.pcall('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
  if answer.err and not string.find(answer.err, 'BUSYGROUP', 1, true) then return answer end
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream, GROUP)) do
    local about = {}
    for n = 1, #consumer, 2 do about[consumer[n]] = consumer[n + 1] end
    if about.pending == 0 and about.idle > args.forget_after_ms then
      redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, about.name)
    end
  end
end
