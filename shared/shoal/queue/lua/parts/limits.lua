-- The limits for all programs, from the hash in which workers announce them.
local BEFORE_WORKERS = {
  max_jobs = 10000, max_texts = 100000, max_bytes = 268435456, max_put_bytes = 33554432, max_unread_bytes = 268435456,
  result_ttl_s = 3600
}

local function limits_of(...)
  local limits, found = {}, look('HMGET', ROOT .. 'limits', ...)
  for n, name in ipairs({...}) do
    limits[name] = check(AMOUNT, tonumber(found[n] or BEFORE_WORKERS[name]), ROOT .. 'limits.%s', name)
  end
  return limits
end
