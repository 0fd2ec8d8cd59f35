-- Take a worker out of the consumer group, unless jobs are pending for it: they would be lost with its name.
-- KEYS: streams. ARGV: group, worker
for _, stream in ipairs(KEYS) do
  if #redis.call('XPENDING', stream, ARGV[1], '-', '+', 1, ARGV[2]) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', stream, ARGV[1], ARGV[2])
  end
end
