-- Make streams and their consumer group where they are missing.
-- KEYS: the streams.
for _, stream in ipairs(KEYS) do
  redis.call('PERSIST', stream) -- allowed when memory is full, and what follows a script's first write is too
  local answer = redis.pcall('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
  if answer.err and not string.find(answer.err, 'BUSYGROUP', 1, true) then return answer end
end
