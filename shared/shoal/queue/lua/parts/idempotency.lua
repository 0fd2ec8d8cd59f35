-- Idempotency keys, a part of put. Two owners may use the same key.
local ONCE_TTL_S, LEAST_ONCE_S = 86400, 60 -- usual and shortest time for which a key is remembered
-- A client that uses WHOLE_SHARE of its unread bytes or less gets the usual time. Each further HALVING_SHARE halves it.
local WHOLE_SHARE, HALVING_SHARE = 1 / 4, 1 / 24

-- Check a key; return its name, and an answer if the key was used. An expired or cancelled job frees its key.
local function use_of(once)
  check(MAP, once, 'once')
  check(WORD, once.key, 'once.key')
  if once.owner ~= nil then check(LABEL, once.owner, 'once.owner') end
  if once.digest ~= nil then check(LABEL, once.digest, 'once.digest') end
  if #args.jobs > 1 then refuse('once goes with one job, and jobs has ' .. #args.jobs) end
  local owner = once.owner or args.client
  if string.find(owner, '%z') then owner = redis.sha1hex(owner) end -- a zero byte ends the owner
  local name = 'once:' .. redis.sha1hex(owner .. '\0' .. once.key)
  local id, digest = unpack(look('HMGET', ROOT .. name, 'id', 'digest'))
  local status = id and read(id, {'status'}).status
  if not id or status == 'expired' or status == 'cancelled' then return name, nil end
  return name, {status = digest == (once.digest or '') and 'known' or 'reused', id = id}
end

-- Remember a key; return the number of seconds. `share` is the used share of the client's unread bytes.
local function remember(name, id, share)
  local halvings = math.max(0, share - WHOLE_SHARE) / HALVING_SHARE
  local ttl_s = math.max(LEAST_ONCE_S, math.floor(ONCE_TTL_S / 2 ^ halvings))
  call('HSET', ROOT .. name, 'id', id, 'digest', args.once.digest or '')
  call('EXPIRE', ROOT .. name, ttl_s)
  keep(member_of(name, KEYS_BYTES, args.client), ttl_s)
  return ttl_s
end
