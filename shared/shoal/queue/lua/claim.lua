-- Take over one job of a worker that left it behind, of those delivered least the one that has waited longest.
-- KEYS: stream. ARGV: group, who takes it, who has it now, most jobs to look at
-- Returns its entry, the entry's fields and how often it was delivered, or false if there is none.
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[4], ARGV[3])
for place, job in ipairs(pending) do job.place = place end
table.sort(pending, function(a, b) return a[4] < b[4] or a[4] == b[4] and a.place < b.place end)
for _, job in ipairs(pending) do
  local found = redis.call('XRANGE', KEYS[1], job[1], job[1])[1]
  if found then
    local count = ARGV[2] == ARGV[3] and job[4] or job[4] + 1 -- whoever takes its own job back has not died of it
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, job[1], 'RETRYCOUNT', count)
    return {job[1], found[2], count}
  end
  redis.call('XACK', KEYS[1], ARGV[1], job[1]) -- deleted while it was pending: nothing is left to answer
end
return false
