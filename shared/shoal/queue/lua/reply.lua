-- Acknowledge jobs and write their replies, each together or not at all: of two workers that ran the same job, only the
-- reply of the first is written. An entry that holds another job than the one that was run stays as it is.
-- KEYS: those of all lanes, the unread results and their load, the stream of dead letters, then addresses and records: answers give their places here.
-- args: lanes, result_ttl_s, max_dead_letters, max_dead_bytes, dead_key (its place among KEYS), answers: list of {lane,
--   is_overflow, entry, identity (of the job), id (of the job) and reply (if the job can be answered), address_key, is_stream, record_key, status and
--   timings (of a job with a record), letter (fields of a dead letter, if one is kept)}
-- Returns {written}: how many of the jobs were still unanswered.
local lanes, unread, written = lanes_by_name(), unread_at(#args.lanes * #LANE_KEYS + 1), 0

-- Write a reply to its address; return the error if that fails.
local function send(answer)
  local address, sent = KEYS[answer.address_key], nil
  if answer.is_stream then
    sent = redis.pcall('XADD', address, '*', 'reply', answer.reply)
  else
    sent = redis.pcall('RPUSH', address, answer.reply)
    if type(sent) == 'number' then
      count_unread(unread, answer.id, client_of(KEYS[answer.record_key]), answer.reply, args.result_ttl_s)
    end
  end
  local status = type(sent) == 'table' and 'failed' or answer.status
  if answer.record_key then conclude(KEYS[answer.record_key], status, args.result_ttl_s, answer.timings) end
  redis.call('EXPIRE', address, args.result_ttl_s)
  return type(sent) == 'table' and sent.err -- something else is at that address
end

-- Keep a dead letter. Each has the bytes of all letters put until then, so that those between two are known.
local function keep(letter, job)
  local dead = KEYS[args.dead_key]
  local last, total_bytes = redis.call('XREVRANGE', dead, '+', '-', 'COUNT', 1)[1], #job
  local fields = {'job', job}
  for name, value in pairs(letter) do
    fields[#fields + 1], fields[#fields + 2] = name, value
    total_bytes = total_bytes + #value
  end
  if last then total_bytes = total_bytes + (tonumber(fields_of(last).total_bytes) or 0) end
  fields[#fields + 1], fields[#fields + 2] = 'total_bytes', string.format('%.0f', total_bytes)
  redis.call('XADD', dead, 'MAXLEN', args.max_dead_letters, '*', unpack(fields))
  while redis.call('XLEN', dead) > 1 do
    local oldest = redis.call('XRANGE', dead, '-', '+', 'COUNT', 1)[1]
    if total_bytes - (tonumber(fields_of(oldest).total_bytes) or 0) <= args.max_dead_bytes then break end
    redis.call('XDEL', dead, oldest[1])
  end
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
