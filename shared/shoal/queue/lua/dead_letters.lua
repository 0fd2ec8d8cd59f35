-- Read dead letters, the newest first. Each value is cut to max_value_bytes, because whole jobs can have megabytes.
-- args: names (of the fields wanted), max_value_bytes, max_letters, before ('(' and a letter's id; '+' for the first call)
-- Returns {letters}: a list of {id, size_bytes (of the job), fields}
local letters, before = {}, args.before
while #letters < args.max_letters do
  local entry = call('XREVRANGE', ROOT .. 'dead', before, '-', 'COUNT', 1)[1]
  if not entry then break end
  local fields, listed = {}, {}
  for n = 1, #entry[2], 2 do fields[entry[2][n]] = entry[2][n + 1] end
  for _, name in ipairs(args.names) do listed[name] = string.sub(fields[name] or '', 1, args.max_value_bytes) end
  letters[#letters + 1] = {id = entry[1], size_bytes = #(fields.job or ''), fields = listed}
  before = '(' .. entry[1]
end
return cmsgpack.pack({letters = letters})
