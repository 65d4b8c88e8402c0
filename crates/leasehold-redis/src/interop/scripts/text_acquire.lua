-- Acquires locks that are strings, all or none. A request that is repeated with the same tokens renews what they hold,
-- and never shortens it.
--
-- KEYS  i   the i-th lock; behind the locks what else their ends touch, so that a server which
--           can't do that in one script refuses to take them
-- ARGV  1   1 if tokens stand at the end of values, 0 if at the beginning
--       2   what a lock without expiry is given, ms; 0 to leave it alone
--       for the i-th lock, from 3i on: token, value, ttl in ms
--       and behind them: see in_time.lua
--
-- Returns an array
--   granted fence   1, and 0: there are no fences
--   already fence   2, if the token had the first lock
--   busy            0 i left value adopted: what stands in the way at the i-th lock, for how many
--                   ms yet (-1 without expiry), and 1 if it was given an expiry just now
--   foreign         -1 type i
--
-- Atomic: one script.
local last, adopt, had = ARGV[1] == '1', ARGV[2] + 0, false
local locks = (#ARGV - 3) / 3
for i = 1, locks do
  local key, token = KEYS[i], ARGV[3 * i]
  local stored = redis.pcall('GET', key)
  if type(stored) == 'table' then
    return {-1, redis.call('TYPE', key).ok, i}
  end
  if stored then
    local mine = last and string.sub(stored, -#token) == token
      or not last and string.sub(stored, 1, #token) == token
    if not mine then
      local left, adopted = redis.call('PTTL', key), 0
      if left == -1 and adopt > 0 then
        redis.call('PEXPIRE', key, adopt)
        left, adopted = adopt, 1
      end
      return {0, i, left, stored, adopted}
    end
    had = had or i == 1
  end
end
for i = 1, locks do
  local key, value, ttl = KEYS[i], ARGV[3 * i + 1], ARGV[3 * i + 2]
  if not redis.call('SET', key, value, 'NX', 'PX', ttl) and redis.call('PTTL', key) < ttl + 0 then
    redis.call('PEXPIRE', key, ttl)
  end
end
return {had and 2 or 1, 0}
