-- Answer jobs, each once. If two workers ran the same job, only the worker that still holds it can answer.
-- args: result_ttl_s, max_kept_bytes (of all unread results), max_own_bytes (of one client's unread results, which are kept
--   even if all have more than max_kept_bytes), max_dead_letters, max_dead_bytes, answers: list of {worker, key, id, reply
--   (nil if the job cannot be answered), reply_to (or nil), status, timings, letter (fields of a dead letter, or nil)}
-- Returns {written}: the number of jobs that were still unanswered.

-- Dead letters. The field `before` of a letter is the number of bytes of all letters kept before it since
-- the stream was last empty. So the oldest and the newest letter give the bytes of all letters.
local DEAD = ROOT .. 'dead'

-- Return the id of the letter at an end of the stream, the bytes before it, and the bytes up to its end.
local function letter_at(command, from, to)
  local id, fields = unpack(call(command, DEAD, from, to, 'COUNT', 1)[1] or {'', {}})
  local before, bytes = 0, 0
  for n = 1, #fields, 2 do
    if fields[n] == 'before' then before = tonumber(fields[n + 1]) or 0 end
    bytes = bytes + #fields[n + 1]
  end
  return id, before, before + bytes
end

-- Keep a letter, and delete the oldest of the other letters until all limits hold.
local function bury(letter, job)
  local fields = {'job', job, 'before', select(3, letter_at('XREVRANGE', '+', '-'))}
  for name, value in pairs(letter) do fields[#fields + 1], fields[#fields + 2] = name, value end
  call('XADD', DEAD, '*', unpack(fields))
  local newest, _, through = letter_at('XREVRANGE', '+', '-')
  local oldest, before = letter_at('XRANGE', '-', '+')
  while oldest ~= newest and (call('XLEN', DEAD) > args.max_dead_letters or through - before > args.max_dead_bytes) do
    call('XDEL', DEAD, oldest)
    oldest, before = letter_at('XRANGE', '-', '+')
  end
end

-- Replies
local SMALL_BYTES, written = 1024, 0 -- a reply up to this size, such as most errors, is always kept

-- Put an error in place of a result for which there is no room, because its client fetched too few of its results.
local function fit(answer, client)
  if #answer.reply <= SMALL_BYTES then return end
  local all, own = unpack(redis.pcall('HMGET', UNREAD_LOAD, 'bytes', 'client:' .. client))
  all, own = tonumber(all) or 0, tonumber(own) or 0
  if #answer.reply + all <= args.max_kept_bytes or #answer.reply + own <= args.max_own_bytes then return end
  local words = 'no room for the %d bytes of the reply: the client has %d bytes of results that were not read; fetch them, '
    .. 'then submit again'
  local failure = {code = 'too_large', message = string.format(words, #answer.reply, own)}
  answer.reply, answer.status = cmsgpack.pack({v = 1, id = answer.id, status = 'failed', error = failure}), 'failed'
end

call('PERSIST', HOLDERS) -- Redis allows this even if memory is full, and then later writes too
for _, answer in ipairs(args.answers) do
  local job, letter = read(answer.key, PLACE), answer.letter
  if job.lane and job.worker == answer.worker then
    written = written + 1
    local is_lost = not answer.reply -- or the result's key belongs to another unanswered job with this pushed job's id
      or not answer.reply_to and answer.id ~= answer.key and read(answer.id, {'lane'}).lane
    if not is_lost then
      if not answer.reply_to then fit(answer, job.client) end
      local fault = send(answer.id, answer.reply_to, job.client, answer.reply, args.result_ttl_s)
      if fault then answer.status = 'failed' end
      letter = letter or fault and {reason = 'internal: the reply could not be written: ' .. fault, lane = job.lane}
    end
    local packed = letter and call('HGET', record_of(answer.key), 'job')
    job.status = answer.reply and job.status
    remove(answer.key, job)
    if job.status or not is_lost and not answer.reply_to then
      conclude(answer.id, answer.status, answer.timings, args.result_ttl_s)
    end
    if letter then bury(letter, packed) end
  end
end
settle()
return cmsgpack.pack({written = written})
