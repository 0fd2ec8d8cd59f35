-- Dead letters, a part of answer. The field `before` of a letter is the number of bytes of all letters kept before it since
-- the stream was last empty. So the oldest and the newest letter give the bytes of all letters.
local DEAD = ROOT .. 'dead'

-- Return the id of the letter at an end of the stream, the bytes before it, and the bytes up to its end.
local function letter_at(command, from, to)
  local id, fields = unpack(call(command, DEAD, from, to, 'COUNT', 1)[1] or {'', {}})
  local before, bytes = 0, 0
  for n = 1, #fields, 2 do
    if fields[n] == 'before' then before = tonumber(fields[n + 1]) or 0 end
    bytes = bytes + #fields[n + 1]
  end
  return id, before, before + bytes
end

-- Keep a letter, and delete the oldest of the other letters until all limits hold.
local function bury(letter, job)
  local fields = {'job', job, 'before', select(3, letter_at('XREVRANGE', '+', '-'))}
  for name, value in pairs(letter) do fields[#fields + 1], fields[#fields + 2] = name, value end
  call('XADD', DEAD, '*', unpack(fields))
  local newest, _, through = letter_at('XREVRANGE', '+', '-')
  local oldest, before = letter_at('XRANGE', '-', '+')
  while oldest ~= newest and (call('XLEN', DEAD) > args.max_dead_letters or through - before > args.max_dead_bytes) do
    call('XDEL', DEAD, oldest)
    oldest, before = letter_at('XRANGE', '-', '+')
  end
end
