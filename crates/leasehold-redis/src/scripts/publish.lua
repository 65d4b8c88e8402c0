-- Sends one message, for an examination of the server: as the others do, whose way it shares.
--
-- KEYS[1]  a lock, which is not looked at: some servers check where its slot is
-- ARGV[1]  see begin.lua
-- ARGV[2]  channel
-- ARGV[3]  the message
--
-- Returns an array that is empty but for what could not be sent; see tell.lua.
-- include: begin
-- include: clock
messages = {argv[2], argv[3]}
-- include: tell
return {unsent}
