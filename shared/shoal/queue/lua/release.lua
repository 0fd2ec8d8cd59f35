-- What the scripts that end a job begin with: taking its entry out of its stream, and out of what its lane holds.
local function lower(load, field, amount)
  if redis.call('HINCRBY', load, field, 0 - amount) <= 0 then redis.call('HDEL', load, field) end
end

-- Sets the status that a job ends with, which may be known for longer than its result.
local function conclude(record, status, ttl, timings)
  local kept = redis.pcall('HSET', record, 'status', status, 'timings', timings)
  if type(kept) == 'table' then return end -- something else has the name of the record
  redis.call('EXPIRE', record, math.max(ttl, redis.call('HGET', record, 'lives') or 0))
end

-- Returns the bytes of the job. An entry that no script added was not counted, and has no `texts`.
local function release(stream, load, entry)
  local found, fields = redis.call('XRANGE', stream, entry, entry)[1], {}
  for i = 1, found and #found[2] or 0, 2 do fields[found[2][i]] = found[2][i + 1] end
  redis.call('XDEL', stream, entry)
  local texts = string.match(fields.texts or '', '^%d%d?%d?%d?%d?%d?$')
  if texts and fields.job then
    lower(load, 'texts', texts)
    lower(load, 'bytes', #fields.job)
    if fields.client then lower(load, 'client:' .. fields.client, texts) end
  end
  return fields.job or ''
end

