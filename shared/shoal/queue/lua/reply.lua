-- Acknowledge jobs and write their replies, each together or not at all: of two workers that ran the same job, only the
-- reply of the first is written. An entry that holds another job than the one that was run stays as it is.
-- KEYS: those of all lanes, the unread results and their load, the stream of dead letters and the key with their bytes, then
--   addresses and records: answers give their places here.
-- args: lanes, result_ttl_s, max_kept_bytes (of unread results), max_own_bytes (of those of a client that are kept in any
--   case), max_dead_letters, max_dead_bytes, dead_key (its place among KEYS), answers: list of {lane,
--   is_overflow, entry, identity (of the job), id (of the job) and reply (if the job can be answered), address_key, is_stream, record_key, status and
--   timings (of a job with a record), letter (fields of a dead letter, if one is kept)}
-- Returns {written}: how many of the jobs were still unanswered.
local DEAD_BYTES_TTL_S = 3600 -- of the sum of the bytes of dead letters
local SMALL_BYTES = 1024 -- of a reply, such as most errors

local lanes, unread, written = lanes_by_name(), unread_at(#args.lanes * #LANE_KEYS + 1), 0

-- Put an error in place of a result for which there is no room: its client put more jobs than it fetches results of.
local function fit(answer, client)
  if #answer.reply <= SMALL_BYTES then return end
  local all_bytes = #answer.reply + (redis.call('HGET', unread.load, 'bytes') or 0)
  local own_bytes = #answer.reply + (redis.call('HGET', unread.load, 'client:' .. client) or 0)
  if all_bytes <= args.max_kept_bytes or own_bytes <= args.max_own_bytes then return end
  local message = string.format('no room for the %d bytes of the reply: the client has %d bytes of results that were not '
    .. 'read; fetch them, then submit again', #answer.reply, own_bytes - #answer.reply)
  local reply = {v = 1, id = answer.id, status = 'failed', error = {code = 'too_large', message = message}}
  answer.reply, answer.status = cmsgpack.pack(reply), 'failed'
end

-- Write a reply to its address; return the error if that fails.
local function send(answer)
  local address, sent = KEYS[answer.address_key], nil
  if answer.is_stream then
    sent = redis.pcall('XADD', address, '*', 'reply', answer.reply)
  else
    local client = client_of(KEYS[answer.record_key])
    fit(answer, client)
    sent = redis.pcall('RPUSH', address, answer.reply)
    if type(sent) == 'number' then count_unread(unread, answer.id, client, answer.reply, args.result_ttl_s) end
  end
  local status = type(sent) == 'table' and 'failed' or answer.status
  if answer.record_key then conclude(KEYS[answer.record_key], status, args.result_ttl_s, answer.timings) end
  redis.call('EXPIRE', address, args.result_ttl_s)
  return type(sent) == 'table' and sent.err -- something else is at that address
end

-- The bytes of all dead letters. They are added up anew when there is no sum: it lives for a while only, because letters
-- may be deleted without a script.
local function sum_of_bytes(dead, sum_key)
  local sum = redis.call('GET', sum_key)
  if sum and redis.call('XLEN', dead) > 0 then return tonumber(sum) end
  local bytes, entry = 0, redis.call('XRANGE', dead, '-', '+', 'COUNT', 1)[1]
  while entry do
    bytes = bytes + bytes_of(entry[2])
    entry = redis.call('XRANGE', dead, '(' .. entry[1], '+', 'COUNT', 1)[1]
  end
  redis.call('SET', sum_key, bytes, 'EX', DEAD_BYTES_TTL_S)
  return bytes
end

-- Keep a dead letter, and delete the oldest of the others that exceed a limit with it.
local function keep(letter, job)
  local dead, sum_key = KEYS[args.dead_key], KEYS[args.dead_key + 1]
  local fields = {'job', job}
  for name, value in pairs(letter) do fields[#fields + 1], fields[#fields + 2] = name, value end
  local bytes = sum_of_bytes(dead, sum_key) + bytes_of(fields)
  redis.call('XADD', dead, '*', unpack(fields))
  local number = redis.call('XLEN', dead)
  while number > args.max_dead_letters or number > 1 and bytes > args.max_dead_bytes do
    local oldest = redis.call('XRANGE', dead, '-', '+', 'COUNT', 1)[1]
    redis.call('XDEL', dead, oldest[1])
    number, bytes = number - 1, bytes - bytes_of(oldest[2])
  end
  redis.call('SET', sum_key, bytes, 'KEEPTTL')
end

for _, answer in ipairs(args.answers) do
  local lane = lanes[answer.lane]
  local stream = answer.is_overflow and lane.overflow or lane.front
  local fields = read(stream, answer.entry)
  local is_other = fields and not holds(fields, answer.identity)
  if not is_other and redis.call('XACK', stream, GROUP, answer.entry) == 1 then
    if fields then release(lane, stream, answer.entry, fields) end
    local obstacle = answer.reply and send(answer)
    local letter = answer.letter
      or (obstacle and {reason = 'internal: the reply could not be written: ' .. obstacle, lane = answer.lane})
    if letter then keep(letter, fields and fields.job or '') end
    written = written + 1
  end
end
return cmsgpack.pack({written = written})
