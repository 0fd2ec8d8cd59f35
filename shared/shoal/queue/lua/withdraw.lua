-- Take jobs back whose callers have gone, those that no worker has yet.
-- KEYS: for each job its stream and its lane's load. ARGV: group, then the entry of each
-- Returns how many were taken back.
local withdrawn = 0
for i = 1, #ARGV - 1 do
  local stream, load, entry = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i + 1]
  local pending = redis.pcall('XPENDING', stream, ARGV[1], entry, entry, 1)
  if #pending == 0 and #redis.call('XRANGE', stream, entry, entry) == 1 then -- without a group, an error of length 0
    release(stream, load, entry)
    withdrawn = withdrawn + 1
  end
end
return withdrawn
