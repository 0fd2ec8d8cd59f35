-- Let a result that was read expire soon, and stop counting it as unread. The job's record says that the result was read, and
-- expires soon too, unless the job was put with an idempotency key. args: id
local READ_TTL_S = 60 -- after a broken connection, a reader can read again
local name, job = 'result:' .. args.id, read(args.id, {'client', 'lives', 'status', 'lane'})
local reply = call('LINDEX', ROOT .. name, 0)
if reply then forget(member_of(name, #reply + KEYS_BYTES, job.client)) end
if call('PTTL', ROOT .. name) > READ_TTL_S * 1000 then
  call('EXPIRE', ROOT .. name, READ_TTL_S)
  if job.status and not job.lane then -- the record exists, and its job is answered
    call('HSET', record_of(args.id), 'is_read', 1)
    if not job.lives then call('EXPIRE', record_of(args.id), READ_TTL_S) end
  end
end
