-- Extends a lease of Redisson's lock.
--
-- KEYS  1   the lock
-- ARGV  1   the holder's field
--       2   ttl, ms
--       3   1 if it may end earlier than it would have, else 0
--
-- Returns 1 if it runs on, 0 if it is not this holder's.
--
-- Atomic: one script.
if redis.pcall('HEXISTS', KEYS[1], ARGV[1]) ~= 1 then return 0 end
if ARGV[3] == '1' or redis.call('PTTL', KEYS[1]) < ARGV[2] + 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
