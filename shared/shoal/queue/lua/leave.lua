-- Take a worker out of the consumer group, unless jobs are pending for it: they would be lost with its name.
-- KEYS: the streams. args: consumer
for _, stream in ipairs(KEYS) do
  if #redis.call('XPENDING', stream, GROUP, '-', '+', 1, args.consumer) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, args.consumer)
  end
end
