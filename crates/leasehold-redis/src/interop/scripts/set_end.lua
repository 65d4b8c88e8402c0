-- Ends a lease of Symfony's lock.
--
-- KEYS  1   the lock
-- ARGV  1   how the holder's member begins
--
-- Returns 1 if it was held, 0 if it is not this holder's.
--
-- Atomic: one script.
local key, start = KEYS[1], ARGV[1]
local members = redis.pcall('ZRANGE', key, 0, -1)
if members.err then return 0 end
for _, member in ipairs(members) do
  if string.sub(member, 1, #start) == start then
    redis.call('ZREM', key, member, '__write__')
    return 1
  end
end
return 0
