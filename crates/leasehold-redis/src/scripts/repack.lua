-- Unpacks its arguments and packs them again, for an examination of the server.
--
-- KEYS[1]  a lock, which is not read: some servers check its slot
-- ARGV     pairs of a form and the text that is packed in it
--
-- Returns all that was packed again, an empty text if that failed, or false if the server has no library for it.
if not pcall(function() return struct.pack, struct.unpack end) then return false end
local again = ''
for n = 1, #ARGV, 2 do
  local done, packed = pcall(function() return struct.pack(ARGV[n], struct.unpack(ARGV[n], ARGV[n + 1])) end)
  if not done then return '' end
  again = again .. packed
end
return again
