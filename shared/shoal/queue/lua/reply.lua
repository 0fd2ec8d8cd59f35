-- Acknowledge jobs and write their replies, each together or not at all: of two workers that ran the same job, only the
-- first to finish is heard.
-- KEYS: stream of dead letters, then for each job its stream, its lane's load, where its reply goes, its record
-- ARGV: group, seconds a reply lives, most dead letters, then for each job its entry, reply ('' if nobody can be
--   answered), status ('' for a job without record), timings, dead letter as a msgpack map ('' for none)
-- Returns how many of the jobs were still unanswered.
local written = 0
for i = 0, (#KEYS - 1) / 4 - 1 do
  local stream, load, address, record = KEYS[4 * i + 2], KEYS[4 * i + 3], KEYS[4 * i + 4], KEYS[4 * i + 5]
  local entry, reply, status, timings, packed = unpack(ARGV, 5 * i + 4, 5 * i + 8)
  if redis.call('XACK', stream, ARGV[1], entry) == 1 then
    local letter = packed ~= '' and cmsgpack.unpack(packed)
    local job = release(stream, load, entry)
    if reply ~= '' then
      local sent
      if status == '' then
        sent = redis.pcall('XADD', address, '*', 'reply', reply)
      else
        sent = redis.pcall('RPUSH', address, reply)
        conclude(record, status, ARGV[2], timings)
      end
      redis.call('EXPIRE', address, ARGV[2])
      if type(sent) == 'table' and sent.err then -- something else is at that address
        letter = letter or {reason = 'internal: the reply could not be written: ' .. sent.err}
      end
    end
    if letter then
      local fields = {'job', job}
      for name, value in pairs(letter) do fields[#fields + 1], fields[#fields + 2] = name, value end
      redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[3], '*', unpack(fields))
    end
    written = written + 1
  end
end
return written
