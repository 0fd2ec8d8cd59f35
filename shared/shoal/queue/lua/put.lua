-- Add jobs to a lane, all of them or, where it would hold too much, none.
-- KEYS: front and back of the lane, its load, then the record of each submitted job (none for jobs that have a reply
--   address), and, for one job with an idempotency key, what that key was used for
-- ARGV: most jobs, texts and bytes in the lane, texts that a client may have at the front, the client, seconds that an
--   idempotency key lives, job id and digest of what was asked with it, then for each job its bytes and how many texts
-- Returns for each job where it is (0 front, 1 back) and its entry, or -1 and the id of the job that was put before.
-- Fails with FULL, the share of the lane that the client may fill, and the jobs, texts and bytes in it, or with REUSED
-- and the id of the job.
local front, back, load = KEYS[1], KEYS[2], KEYS[3]
local num_jobs = (#ARGV - 8) / 2
local once = KEYS[4 + num_jobs]
local used = once and redis.call('GET', once)
if used then
  local id, digest = string.match(used, '^(%S+) (%S+)$')
  if digest ~= ARGV[8] then return redis.error_reply('REUSED ' .. id) end
  return {-1, id}
end

local is_new, jobs, texts, bytes = {}, 0, 0, 0
for i = 1, num_jobs do
  local record = KEYS[3 + i]
  if not string.match(ARGV[8 + 2 * i], '^%d%d?%d?%d?%d?%d?$') then
    return redis.error_reply('ERR the number of texts takes up to 6 digits')
  end
  is_new[i] = not record or redis.call('EXISTS', record) == 0
  if is_new[i] then
    jobs, texts, bytes = jobs + 1, texts + tonumber(ARGV[8 + 2 * i]), bytes + #ARGV[7 + 2 * i]
  end
end
local held = redis.call('XLEN', front) + redis.call('XLEN', back)
local client = 'client:' .. ARGV[5]
local loads = held == 0 and {} or redis.call('HMGET', load, 'texts', 'bytes', client)
local all_texts, all_bytes, at_front = tonumber(loads[1] or 0), tonumber(loads[2] or 0), tonumber(loads[3] or 0)
-- The last eighth of a lane is for those who have little in it: one client cannot fill it for all.
local share = at_front + texts > tonumber(ARGV[4]) and 0.875 or 1
if jobs > 0 and (held + jobs > share * ARGV[1] or all_texts + texts > share * ARGV[2]
    or all_bytes + bytes > share * ARGV[3]) then
  return redis.error_reply(string.format('FULL %g %d %d %d', share, held, all_texts, all_bytes))
end

local places = {}
for i = 1, num_jobs do
  if is_new[i] then
    local job, count, record = ARGV[7 + 2 * i], ARGV[8 + 2 * i], KEYS[3 + i]
    local place, entry
    count = tonumber(count)
    if at_front + count <= tonumber(ARGV[4]) and count <= ARGV[4] / 8 then
      place, entry = 0, redis.call('XADD', front, '*', 'job', job, 'texts', count, 'client', ARGV[5])
      at_front = at_front + count
    else
      place, entry = 1, redis.call('XADD', back, '*', 'job', job, 'texts', count)
    end
    if record then
      redis.call('HSET', record, 'status', 'queued', 'stream', place == 0 and front or back, 'entry', entry)
      if once then redis.call('HSET', record, 'lives', ARGV[6]) end -- as long as the key is known, so is the job
    end
    places[#places + 1], places[#places + 2] = place, entry
  else
    places[#places + 1], places[#places + 2] = -1, ''
  end
end
if jobs > 0 then
  if held == 0 then redis.call('DEL', load) end
  redis.call('HSET', load, 'texts', all_texts + texts, 'bytes', all_bytes + bytes)
  if at_front > 0 then redis.call('HSET', load, client, at_front) end
  if once then redis.call('SET', once, ARGV[7] .. ' ' .. ARGV[8], 'EX', ARGV[6]) end
end
return places
