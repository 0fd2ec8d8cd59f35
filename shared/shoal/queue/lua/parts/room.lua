-- The part of put that finds out whether there is room for jobs.
local RESERVED_SHARE = 1 / 8 -- of a lane, for clients that have few texts in it: no client fills it for all others
local FEW_TEXTS, FEW_BYTES = 128, 262144
local UNREAD_FLOOR = 1 / 64 -- of max_unread_bytes: a client with less is not refused for the unread results of others

-- Return the share that a client has of the unread bytes that it may have, and its refusal if it has all.
local function unread_of(client, limits)
  local all, own = unpack(look('HMGET', UNREAD_LOAD, 'bytes', 'client:' .. client))
  all, own = tonumber(all or 0), tonumber(own or 0)
  local most = math.max(math.floor(UNREAD_FLOOR * limits.max_unread_bytes), limits.max_unread_bytes - all)
  return own / most, own >= most and {status = 'unread', bytes = all, client_bytes = own, most = most}
end

-- Return the share of a lane that a client may fill that has so much in it.
local function share_of(texts, bytes) return texts <= FEW_TEXTS and bytes <= FEW_BYTES and 1 or 1 - RESERVED_SHARE end

-- Count new jobs of a client in a lane, or return their refusal.
local function count_or_refuse(lane, client, new, limits)
  local load, full, own = key_of(lane, 'load'), {jobs = look('ZCARD', key_of(lane, 'jobs'))}, {}
  local held = look('HMGET', load, 'texts', 'bytes', 'texts:' .. client, 'bytes:' .. client)
  for n = 1, 4 do held[n] = full.jobs > 0 and tonumber(held[n] or 0) or 0 end -- else it is of jobs that Redis has lost
  full.texts, full.bytes, own.texts, own.bytes = held[1], held[2], held[3] + new.texts, held[4] + new.bytes
  for _, what in ipairs({'jobs', 'texts', 'bytes'}) do
    local limit = limits['max_' .. what]
    local most = math.floor(share_of(new.texts, new.bytes) * limit)
    if what == 'bytes' then most = math.min(most, limits.max_put_bytes) end
    if new[what] > most then return {status = 'too_large', exceeded = what, asked = new[what], most = most} end
    most = math.floor(share_of(own.texts, own.bytes) * limit)
    if full[what] + new[what] > most then
      full.status, full.exceeded, full.asked, full.most = 'full', what, new[what], most
    end
  end
  if full.status then return full end
  call('HSET', load, 'texts', full.texts + new.texts, 'bytes', full.bytes + new.bytes,
    'texts:' .. client, own.texts, 'bytes:' .. client, own.bytes)
end
