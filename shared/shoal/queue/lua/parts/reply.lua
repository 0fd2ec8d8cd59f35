-- Replies, a part of scripts that answer jobs.
local renewed = {} -- addresses whose expiry this run has renewed

local function address_of(id, reply_to) return reply_to and 'replies:' .. reply_to or 'result:' .. id end

-- Write the reply to a job; return Redis's error if the address is a key of another type.
local function send(id, reply_to, client, reply, result_ttl_s)
  local name = address_of(id, reply_to)
  local sent = reply_to and redis.pcall('XADD', ROOT .. name, '*', 'reply', reply) or redis.pcall('RPUSH', ROOT .. name, reply)
  if type(sent) == 'table' and sent.err then return sent.err end
  if not renewed[name] then call('EXPIRE', ROOT .. name, result_ttl_s) end
  renewed[name] = true
  if not reply_to then keep(member_of(name, #reply + KEYS_BYTES, client), FIRST_LOOK_S) end
end

-- Set the final status of a job, let its record expire, and send a note to processes that wait for the result.
local function conclude(id, status, timings, result_ttl_s)
  local written = redis.pcall('HSET', record_of(id), 'status', status, 'timings', timings)
  if type(written) == 'table' then return end -- another program's key has the record's name
  local job = read(id, {'lives', 'watchers'})
  redis.pcall('EXPIRE', record_of(id), math.max(result_ttl_s, tonumber(job.lives) or 0))
  for address in string.gmatch(job.watchers or '', '%S+') do
    redis.pcall('XADD', ROOT .. 'replies:' .. address, '*', 'answered', id)
    call('EXPIRE', ROOT .. 'replies:' .. address, result_ttl_s)
  end
end
