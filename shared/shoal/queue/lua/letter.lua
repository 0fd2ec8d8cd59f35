-- The second part of the scripts that keep or delete dead letters.

-- The bytes of a letter: those of its fields without their names.
local function bytes_of(fields)
  local bytes = 0
  for n = 2, #fields, 2 do bytes = bytes + #fields[n] end
  return bytes
end

