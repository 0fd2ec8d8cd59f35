-- Tell why no job can be put, where another program wrote a key of the lanes.
-- KEYS: those of all lanes, then the load of the unread results. args: lanes
-- Returns the key and the error that its next command would get, as an error.
local LAST_ID = '18446744073709551615-18446744073709551615' -- of a stream, after which there is no other

-- True if a stream has given its last id, which also an entry that was taken or deleted may have had.
local function is_used_up(stream)
  if #redis.call('XRANGE', stream, LAST_ID, LAST_ID) > 0 then return true end
  local groups = redis.pcall('XINFO', 'GROUPS', stream) -- an error, of length 0, if there is no stream
  for _, group in ipairs(groups) do
    for n = 1, #group, 2 do
      if group[n] == 'last-delivered-id' and group[n + 1] == LAST_ID then return true end
    end
  end
end

local wrong = fault_of_lanes() or fault_of_value('HEXISTS', KEYS[#KEYS], '')
for _, lane in pairs(wrong and {} or lanes_by_name()) do
  wrong = wrong or fault_of_values(lane)
  for _, stream in ipairs({lane.front, lane.overflow}) do
    wrong = wrong or is_used_up(stream) and stream .. ': ERR The stream has exhausted the last possible ID'
  end
end
return wrong and redis.error_reply('ERR ' .. wrong) or cmsgpack.pack({})
