-- Answer jobs, each once: of two workers that ran the same job, only the one that still holds it.
-- args: result_ttl_s, max_kept_bytes (of unread results), max_own_bytes (of those of a client that are kept in any case),
--   max_dead_letters, max_dead_bytes, answers: list of {worker, key, id and reply (if the job can be answered), reply_to (if
--   there is such an address), status, timings, letter (fields of a dead letter, if one is kept)}
-- Returns {written}: how many of the jobs were still unanswered.
local DEAD_BYTES_TTL_S = 3600 -- of the sum of the bytes of dead letters
local SMALL_BYTES = 1024 -- of a reply, such as most errors
local DEAD, DEAD_BYTES = ROOT .. 'dead', ROOT .. 'dead:bytes'

-- Put an error in place of a result for which there is no room: its client put more jobs than it fetches results of.
local function fit(answer, client)
  if #answer.reply <= SMALL_BYTES then return end
  local all_bytes = #answer.reply + (call('HGET', UNREAD_LOAD, 'bytes') or 0)
  local own_bytes = #answer.reply + (call('HGET', UNREAD_LOAD, 'client:' .. client) or 0)
  if all_bytes <= args.max_kept_bytes or own_bytes <= args.max_own_bytes then return end
  local message = string.format('no room for the %d bytes of the reply: the client has %d bytes of results that were not '
    .. 'read; fetch them, then submit again', #answer.reply, own_bytes - #answer.reply)
  local reply = {v = 1, id = answer.id, status = 'failed', error = {code = 'too_large', message = message}}
  answer.reply, answer.status = cmsgpack.pack(reply), 'failed'
end

-- Write a reply to its address; return the error if that fails.
local function send(answer, client, is_kept)
  local address = ROOT .. (answer.reply_to and 'replies:' .. answer.reply_to or 'result:' .. answer.id)
  local sent
  if answer.reply_to then
    sent = redis.pcall('XADD', address, '*', 'reply', answer.reply)
  elseif redis.pcall('HEXISTS', record_of(answer.id), 'lane') == 1 then
    return nil -- the result of another job, which has the same id and is not answered
  else
    fit(answer, client)
    sent = redis.pcall('RPUSH', address, answer.reply)
    if type(sent) == 'number' then count_unread(answer.id, client, answer.reply, args.result_ttl_s) end
  end
  local status = type(sent) == 'table' and 'failed' or answer.status
  if is_kept or not answer.reply_to then conclude(answer.id, status, args.result_ttl_s, answer.timings) end
  call('EXPIRE', address, args.result_ttl_s)
  return type(sent) == 'table' and sent.err -- something else is at that address
end

-- The bytes of all dead letters. They are added up anew when there is no sum: it lives for a while only, because letters
-- may be deleted without a script.
local function sum_of_bytes()
  local sum = call('GET', DEAD_BYTES)
  if sum and call('XLEN', DEAD) > 0 then return tonumber(sum) end
  local bytes, entry = 0, call('XRANGE', DEAD, '-', '+', 'COUNT', 1)[1]
  while entry do
    bytes = bytes + bytes_of(entry[2])
    entry = call('XRANGE', DEAD, '(' .. entry[1], '+', 'COUNT', 1)[1]
  end
  call('SET', DEAD_BYTES, bytes, 'EX', DEAD_BYTES_TTL_S)
  return bytes
end

-- Keep a dead letter, and delete the oldest of the others that exceed a limit with it.
local function keep(letter, job)
  local fields = {'job', job}
  for name, value in pairs(letter) do fields[#fields + 1], fields[#fields + 2] = name, value end
  local bytes = sum_of_bytes() + bytes_of(fields)
  call('XADD', DEAD, '*', unpack(fields))
  local number = call('XLEN', DEAD)
  while number > args.max_dead_letters or number > 1 and bytes > args.max_dead_bytes do
    local oldest = call('XRANGE', DEAD, '-', '+', 'COUNT', 1)[1]
    call('XDEL', DEAD, oldest[1])
    number, bytes = number - 1, bytes - bytes_of(oldest[2])
  end
  call('SET', DEAD_BYTES, bytes, 'KEEPTTL')
end

local written = 0
for _, answer in ipairs(args.answers) do
  if call('ZREM', held_by(answer.worker), answer.key) == 1 then -- allowed when memory is full, and so is what follows it
    local job, lane = unpack(call('HMGET', record_of(answer.key), answer.letter and 'job' or '', 'lane'))
    local client, status = remove(answer.key)
    local obstacle = answer.reply and send(answer, client or '', status)
    if not answer.reply then call('DEL', record_of(answer.key)) end
    local letter = answer.letter
      or (obstacle and {reason = 'internal: the reply could not be written: ' .. obstacle, lane = lane or ''})
    if letter then keep(letter, job or '') end
    written = written + 1
  end
end
settle()
return cmsgpack.pack({written = written})
