-- Sends one message, for an examination of the server: as the others do, whose way it shares.
--
-- KEYS  1       a lock, which is not looked at: some servers check where its slot is
-- ARGV  1 to 3  see now.lua
--       4       channel
--       5       the message
--
-- Returns an array that is empty but for what could not be sent; see send.lua.
-- include: now
-- include: send
send(ARGV[4], ARGV[5])
return with_unsent({})
