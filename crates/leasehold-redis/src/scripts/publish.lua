-- Sends one message, for an examination of the server, in the same way as the notifications of all scripts.
--
-- KEYS[1]  a lock, which is not read: some servers check its slot
-- ARGV[1]  see begin.lua; $SENT: length of the channel; the channel; the message
--
-- Returns an array that is empty, or has what could not be sent; see tell.lua.
-- include: begin
-- include: clock
local length
length, at = unpack('$SENT', request, at)
messages = {sub(request, at, at + length - 1), sub(request, at + length)}
-- include: tell
return {unsent}
