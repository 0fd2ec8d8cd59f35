-- Have a process told at its address when a job is answered whose status is kept.
-- args: id, address, max_watchers (the oldest are told no longer if there are more)
-- Returns {is_open}: false if the job is answered already, or is unknown; then nothing is done.
local record = record_of(args.id)
local status, known = unpack(call('HMGET', record, 'status', 'watchers'))
local is_open = status == 'queued' or status == 'running'
if is_open then
  local watchers = {}
  for address in string.gmatch(known or '', '%S+') do
    if address ~= args.address then watchers[#watchers + 1] = address end
  end
  watchers[#watchers + 1] = args.address
  if #watchers > args.max_watchers then table.remove(watchers, 1) end
  call('HDEL', record, 'watchers') -- allowed when memory is full, and what follows a script's first write is too
  call('HSET', record, 'watchers', table.concat(watchers, ' '))
end
return cmsgpack.pack({is_open = is_open})
