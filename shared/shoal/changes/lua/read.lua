-- Read changes of a log, until max_entries are read or they have max_bytes.
-- KEYS: the log, and the hash with a line for each log.
-- ARGV: one msgpack map {index, from (an id as in XRANGE), max_bytes, max_entries, max_change_bytes}
-- Returns {entries: list of {id, change, after, num, size}, line (of the log)}, or {fault} if the key is of another type. A
--   change of more than max_change_bytes is returned empty: no client wrote it.
local args = cmsgpack.unpack(ARGV[1])
local entries, bytes, from = {}, 0, args.from
while #entries < args.max_entries and bytes < args.max_bytes do
  local answer = redis.pcall('XRANGE', KEYS[1], from, '+', 'COUNT', 1)
  if answer.err and #entries == 0 then return cmsgpack.pack({fault = answer.err}) end
  local found = answer[1]
  if not found then break end -- at the end, or after an error because `from` is above the highest id
  local entry = {change = '', after = '', num = '', size = ''}
  for n = 1, #found[2] - 1, 2 do
    local name, value = found[2][n], found[2][n + 1]
    if entry[name] and #value <= args.max_change_bytes then entry[name] = value end
  end
  entry.id, from = found[1], '(' .. found[1]
  entries[#entries + 1], bytes = entry, bytes + #entry.change
end
return cmsgpack.pack({entries = entries, line = redis.call('HGET', KEYS[2], args.index) or ''})
