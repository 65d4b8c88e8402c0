-- Acquires Redisson's lock. A request that is repeated with the same field sets how many times the lock is held, and
-- renews it; it never shortens it.
--
-- KEYS  1   the lock
--       2   the counter of a fenced lock, if it is one
-- ARGV  1   the holder's field
--       2   how many times it is held from now on
--       3   ttl, ms
--       4   what a lock without expiry is given, ms; 0 to leave it alone
--       5   see in_time.lua
--
-- Returns an array
--   granted fence   1; the fence is 0 if there is no counter
--   already fence   2
--   busy            0 1 left field adopted: another holder's field, how many ms it has left (-1
--                   without expiry), and 1 if it was given an expiry just now
--   foreign         -1 type 1
--
-- Atomic: one script.
local key, field = KEYS[1], ARGV[1]
local mine = redis.pcall('HEXISTS', key, field)
if type(mine) == 'table' then return {-1, redis.call('TYPE', key).ok, 1} end
if mine == 0 and redis.call('EXISTS', key) == 1 then
  local left, adopted = redis.call('PTTL', key), 0
  if left == -1 and ARGV[4] ~= '0' then
    redis.call('PEXPIRE', key, ARGV[4])
    left, adopted = ARGV[4] + 0, 1
  end
  return {0, 1, left, redis.call('HKEYS', key)[1], adopted}
end
redis.call('HSET', key, field, ARGV[2])
if mine == 0 or redis.call('PTTL', key) < ARGV[3] + 0 then
  redis.call('PEXPIRE', key, ARGV[3])
end
local fence = 0
if KEYS[2] then
  -- A hold that is counted again keeps the number that it has.
  fence = mine == 0 and redis.call('INCR', KEYS[2]) or redis.call('GET', KEYS[2]) + 0
end
return {1 + mine, fence}
