-- The part of scripts that count results which are not read, and idempotency keys that are remembered: a sorted set of them,
-- each with the Unix time of the next look at it, and a hash with their numbers and bytes, and the bytes of each client.
local RESULT_KEYS_BYTES = 1024 -- that Redis needs for the keys of a result, beside those of the reply
local ONCE_BYTES = 1024 -- that Redis needs for an idempotency key and the record that lives as long
local FIRST_SWEEP_S = 1 -- after which it is looked whether an unread result is still there

-- The member of the set that stands for a result: all that is needed to count it no longer.
local function name_of_unread(id, reply_bytes, client)
  return id .. ' ' .. reply_bytes + RESULT_KEYS_BYTES .. ' ' .. client
end

-- Let the counts live so many seconds or, if they do by now, longer: programs may keep their results for different times.
-- It is allowed when memory is full, and what follows a script's first write is too.
local function keep_unread(ttl_s)
  for _, key in ipairs({UNREAD, UNREAD_LOAD}) do
    call('EXPIRE', key, math.max(ttl_s, math.ceil(call('PTTL', key) / 1000)))
  end
end

-- Count a member of the set for a client. Both keys live for so many seconds at least.
local function count_member(member, what, num_bytes, client, look_in_s, ttl_s)
  if call('ZADD', UNREAD, call('TIME')[1] + look_in_s, member) == 1 then
    call('HINCRBY', UNREAD_LOAD, what, 1)
    call('HINCRBY', UNREAD_LOAD, 'bytes', num_bytes)
    call('HINCRBY', UNREAD_LOAD, 'client:' .. client, num_bytes)
  end
  keep_unread(ttl_s)
end

-- Count a result that was written for a client.
local function count_unread(id, client, reply, result_ttl_s)
  local num_bytes = #reply + RESULT_KEYS_BYTES
  count_member(name_of_unread(id, #reply, client), 'results', num_bytes, client, FIRST_SWEEP_S, result_ttl_s)
end

-- Count an idempotency key of a client that is remembered for so many seconds. Its member begins like that of no result.
local function count_once(name, client, ttl_s)
  count_member('=' .. name .. ' ' .. ONCE_BYTES .. ' ' .. client, 'keys', ONCE_BYTES, client, ttl_s, ttl_s)
end

-- Count a result or an idempotency key no longer, if it was counted.
local function uncount_unread(member)
  if call('ZREM', UNREAD, member) == 0 then return end
  local num_bytes, client = string.match(member, '^%S+ (%d+) (.*)$')
  lower(UNREAD_LOAD, string.sub(member, 1, 1) == '=' and 'keys' or 'results', 1)
  lower(UNREAD_LOAD, 'bytes', num_bytes)
  lower(UNREAD_LOAD, 'client:' .. client, num_bytes)
end

