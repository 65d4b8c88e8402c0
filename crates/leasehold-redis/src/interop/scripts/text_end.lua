-- Ends a lease of a lock that is a string, and notifies the waiters as its library does.
--
-- KEYS  1   the lock
--       2   the list in which those who wait look for a word, if there is one
-- ARGV  1   1 if tokens stand at the end of values, 0 if at the beginning
--       2   token
--       3   the channel on which it is published, or empty
--       4   what is published
--
-- Returns 1 if it was held, 0 if it is not this token's; where the server let it publish nothing,
-- {1, {'unsent', why, channel, message}}.
--
-- Atomic: one script.
local stored, token = redis.pcall('GET', KEYS[1]), ARGV[2]
if type(stored) ~= 'string' then return 0 end
local part = ARGV[1] == '1' and string.sub(stored, -#token) or string.sub(stored, 1, #token)
if part ~= token then return 0 end
redis.call('DEL', KEYS[1])
if KEYS[2] then
  redis.call('DEL', KEYS[2])
  redis.pcall('LPUSH', KEYS[2], 1)
  redis.call('PEXPIRE', KEYS[2], 1000)
end
if ARGV[3] ~= '' then
  local sent = redis.pcall('PUBLISH', ARGV[3], ARGV[4])
  if type(sent) == 'table' then return {1, {'unsent', sent.err, ARGV[3], ARGV[4]}} end
end
return 1
