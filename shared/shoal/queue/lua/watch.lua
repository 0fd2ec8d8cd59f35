-- Send a note to an address once a job whose status is kept is answered. args: id (of the job), address
-- Returns {is_open}: false if the job is answered already or unknown. In that case nothing is done.
local MAX_WATCHERS = 64 -- only the last watchers get notes; earlier watchers look for the result from time to time
local record, watchers = record_of(args.id), {args.address}
local status, known = unpack(call('HMGET', record, 'status', 'watchers'))
local is_open = status == 'queued' or status == 'running'
if is_open then
  for address in string.gmatch(known or '', '%S+') do
    if address ~= args.address and #watchers < MAX_WATCHERS then watchers[#watchers + 1] = address end
  end
  call('HDEL', record, 'watchers') -- Redis allows this even if memory is full, and then later writes too
  call('HSET', record, 'watchers', table.concat(watchers, ' '))
end
return cmsgpack.pack({is_open = is_open})
