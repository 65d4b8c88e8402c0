-- Extends a lease of Symfony's lock.
--
-- KEYS  1   the lock
-- ARGV  1   how the holder's member begins
--       2   ttl, ms
--       3   1 if it may end earlier than it would have, else 0
--
-- Returns 1 if it runs on, 0 if it is not this holder's.
--
-- Atomic: one script.
local key, start = KEYS[1], ARGV[1]
local members = redis.pcall('ZRANGE', key, 0, -1, 'WITHSCORES')
if members.err then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #members, 2 do
  if string.sub(members[i], 1, #start) == start and members[i + 1] + 0 > now then
    local ends = now + ARGV[2]
    if ARGV[3] ~= '1' then ends = math.max(ends, members[i + 1] + 0) end
    -- A full server refuses to let a value grow in a script's first write. This command lets the others through.
    redis.call('PEXPIREAT', key, ends)
    redis.call('ZADD', key, ends, members[i], ends, '__write__')
    return 1
  end
end
return 0
