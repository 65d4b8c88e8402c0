-- Unpacks what it is given, and packs that again, for an examination of the server.
--
-- KEYS[1]  a lock, which is not looked at: some servers check where its slot is
-- ARGV     a form and what is packed so, for each
--
-- Returns all that was packed again, an empty text where that failed, or nothing where there is no library for it.
if not pcall(function() return struct.pack, struct.unpack end) then return false end
local again = ''
for n = 1, #ARGV, 2 do
  local done, packed = pcall(function() return struct.pack(ARGV[n], struct.unpack(ARGV[n], ARGV[n + 1])) end)
  if not done then return '' end
  again = again .. packed
end
return again
