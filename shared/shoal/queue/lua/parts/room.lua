-- Room for jobs, a part of put.
local SHARE = 7 / 8 -- a client may fill this share of the room that others leave in a lane, so the next client finds room
local UNREAD_FLOOR = 1 / 64 -- of max_unread_bytes: a client below this share is never refused for others' unread results

-- Return a sum that Redis has, or 0 if another program wrote something else, such as 'inf'.
local function sum_of(value)
  local sum = tonumber(value) or 0
  return sum > -2 ^ 63 and sum < 2 ^ 63 and sum or 0
end

-- Return a client's unread bytes divided by its limit, and a refusal if the client has reached the limit.
local function unread_of(client, limits)
  local all, own = unpack(look('HMGET', UNREAD_LOAD, 'bytes', 'client:' .. client))
  all, own = sum_of(all), sum_of(own)
  local most = math.max(math.floor(UNREAD_FLOOR * limits.max_unread_bytes), limits.max_unread_bytes - all)
  return own / most, own >= most and {status = 'unread', bytes = all, client_bytes = own, most = most}
end

-- Add new jobs of a client to the load of a lane, or return a refusal.
local function count_or_refuse(lane, client, new, limits)
  local load, full = key_of(lane, 'load'), {jobs = look('ZCARD', key_of(lane, 'jobs'))}
  local held = look('HMGET', load, 'jobs:' .. client, 'texts:' .. client, 'bytes:' .. client, 'texts', 'bytes')
  for n = 1, 5 do held[n] = full.jobs > 0 and sum_of(held[n]) or 0 end -- without jobs, Redis has lost them
  full.texts, full.bytes = held[4], held[5]
  for n, what in ipairs({'jobs', 'texts', 'bytes'}) do
    local own, asked, limit = held[n], new[what], limits['max_' .. what]
    local alone, most = math.ceil(SHARE * limit), math.ceil(SHARE * (limit - full[what] + own))
    if what == 'bytes' then alone = math.min(alone, limits.max_put_bytes) end
    if asked > alone then return {status = 'too_large', exceeded = what, asked = asked, most = alone} end
    if own + asked > most then
      full.status, full.exceeded, full.asked, full.own, full.most = 'full', what, asked, own, most
    end
  end
  if full.status then return full end
  call('HSET', load, 'texts', full.texts + new.texts, 'bytes', full.bytes + new.bytes, 'jobs:' .. client, held[1] + new.jobs,
    'texts:' .. client, held[2] + new.texts, 'bytes:' .. client, held[3] + new.bytes)
end
