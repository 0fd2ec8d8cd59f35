-- Unread results and idempotency keys, a part of scripts that count them. A sorted set has a member for each of these keys,
-- 'result:<id> <bytes> <client>' or 'once:<name> <bytes> <client>'. Its score is the Unix time at which `sweep` next
-- checks whether the key still exists. A hash has the numbers of both kinds of keys, and the bytes of all clients and of each.
local UNREAD, UNREAD_LOAD = ROOT .. 'unread', ROOT .. 'unread:load'
local KEYS_BYTES = 1024 -- memory that Redis needs for a result in addition to the reply, or for an idempotency key
local FIRST_LOOK_S = 1

local function member_of(key, num_bytes, client) return key .. ' ' .. num_bytes .. ' ' .. client end

-- Add a member to the sums or subtract it: `sign` is 1 or -1.
local function change(member, sign)
  local kind, num_bytes, client = string.match(member, '^(%a+)%S* (%d+) (.*)$')
  if not kind then return end -- another program wrote the member
  add(UNREAD_LOAD, kind, sign)
  add(UNREAD_LOAD, 'bytes', sign * num_bytes)
  add(UNREAD_LOAD, 'client:' .. client, sign * num_bytes)
end

local function keep(member, look_in_s)
  if redis.pcall('ZADD', UNREAD, call('TIME')[1] + look_in_s, member) == 1 then change(member, 1) end
end

local function forget(member)
  if redis.pcall('ZREM', UNREAD, member) == 1 then change(member, -1) end
end
