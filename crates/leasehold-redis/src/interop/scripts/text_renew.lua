-- Extends a lease of a lock that is a string.
--
-- KEYS  1   the lock
-- ARGV  1   1 if tokens stand at the end of values, 0 if at the beginning
--       2   token
--       3   ttl, ms
--       4   1 if it may end earlier than it would have, else 0
--
-- Returns 1 if it runs on, 0 if it is not this token's.
--
-- Atomic: one script.
local stored, token = redis.pcall('GET', KEYS[1]), ARGV[2]
if type(stored) ~= 'string' then return 0 end
local part = ARGV[1] == '1' and string.sub(stored, -#token) or string.sub(stored, 1, #token)
if part ~= token then return 0 end
if ARGV[4] == '1' or redis.call('PTTL', KEYS[1]) < ARGV[3] + 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return 1
