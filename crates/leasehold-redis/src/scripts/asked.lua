-- What is asked of each lock.
--
-- ARGV  1 to 3  see now.lua
--       4       what is asked of those locks that say nothing else
--       4+i     for the i-th lock: the token, 32 hexadecimal digits, and directly behind it what is
--               asked, if that is not ARGV[4]
-- include: now

-- The token, and what is asked.
local function asked(i)
  local token = ARGV[i + 4]
  if #token == 32 then return token, ARGV[4] end
  return sub(token, 1, 32), sub(token, 33)
end
