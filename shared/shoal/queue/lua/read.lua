-- Let a result that was read expire soon and its record too, unless an idempotency key is used for the job; it counts as
-- unread no longer, and its record says that it was read. args: id
local READ_TTL_S = 60 -- for a reader whose connection has broken
local name, job = 'result:' .. args.id, read(args.id, {'client', 'lives', 'status', 'lane'})
local reply = call('LINDEX', ROOT .. name, 0)
if reply then forget(member_of(name, #reply + KEYS_BYTES, job.client or '')) end
if call('PTTL', ROOT .. name) > READ_TTL_S * 1000 then
  call('EXPIRE', ROOT .. name, READ_TTL_S)
  if job.status and not job.lane then -- else something else has its name, or a job that is not answered
    call('HSET', record_of(args.id), 'is_read', 1)
    if not job.lives then call('EXPIRE', record_of(args.id), READ_TTL_S) end
  end
end
