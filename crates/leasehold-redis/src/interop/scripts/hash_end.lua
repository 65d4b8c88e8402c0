-- Ends a lease of Redisson's lock, or sets how many of its holds remain. It notifies the waiters when the lock becomes
-- free.
--
-- KEYS  1   the lock
-- ARGV  1   the holder's field
--       2   how many holds are to remain; 0 ends the lease
--       3   the channel on which it is published
--       4   what is published
--       5   the command that publishes it: PUBLISH or SPUBLISH
--
-- Returns 1 if it was held, 0 if it is not this holder's; if the server lets no script publish,
-- {1, {'unsent', why, channel, message}}.
--
-- Atomic: one script.
if redis.pcall('HEXISTS', KEYS[1], ARGV[1]) ~= 1 then return 0 end
if ARGV[2] ~= '0' then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  return 1
end
redis.call('DEL', KEYS[1])
local sent = redis.pcall(ARGV[5], ARGV[3], ARGV[4])
-- Servers before version 7 have one sort of channels, and Redisson's clients listen there.
if type(sent) == 'table' and ARGV[5] == 'SPUBLISH' and string.find(sent.err, 'nknown') then
  sent = redis.pcall('PUBLISH', ARGV[3], ARGV[4])
end
if type(sent) == 'table' then return {1, {'unsent', sent.err, ARGV[3], ARGV[4]}} end
return 1
