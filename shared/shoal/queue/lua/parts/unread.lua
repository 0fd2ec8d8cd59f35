-- The part of the scripts that count what Redis keeps for clients: results that were not read, and idempotency keys. A sorted
-- set has 'result:<id> <bytes> <client>' or 'once:<name> …' for each, with the Unix time of the next look whether this key is
-- still there. A hash has the number of each kind, and the bytes of all and of each client.
local UNREAD, UNREAD_LOAD = ROOT .. 'unread', ROOT .. 'unread:load'
local KEYS_BYTES = 1024 -- that Redis needs for a result beside the reply, and for an idempotency key
local FIRST_LOOK_S = 1

local function member_of(key, num_bytes, client) return key .. ' ' .. num_bytes .. ' ' .. client end

-- Add a member to the sums, or take it off them: `sign` is 1 or -1.
local function change(member, sign)
  local kind, num_bytes, client = string.match(member, '^(%a+)%S* (%d+) (.*)$')
  if not kind then return end -- another program wrote it
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
