-- Sends one message, for an examination of the server, in the same way as the notifications of all scripts.
--
-- KEYS[1]  a lock, which is not read: some servers check its slot
-- ARGV[1]  see begin.lua
-- ARGV[2]  channel
-- ARGV[3]  the message
--
-- Returns an array that is empty, or has what could not be sent; see tell.lua.
-- include: begin
-- include: clock
messages = {argv[2], argv[3]}
-- include: tell
return {unsent}
