-- Acquires Symfony's lock for writing. A request that is repeated with the same member renews it, and never shortens
-- it.
--
-- KEYS  1   the lock
-- ARGV  1   the holder's member
--       2   ttl, ms
--       3   see in_time.lua
--
-- Returns an array
--   granted fence   1, and 0: there are no fences
--   already fence   2, and 0
--   busy            0 1 left member 0: another holder's member, and how many ms it has yet
--   foreign         -1 type 1
--
-- Atomic: one script.
local key, member, ttl = KEYS[1], ARGV[1], ARGV[2] + 0
local kind = redis.call('TYPE', key).ok
if kind ~= 'zset' and kind ~= 'none' then return {-1, kind, 1} end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local score = redis.call('ZSCORE', key, member)
if score and score + 0 <= now then score = false end
local alive = '(' .. now
local others = redis.call('ZCOUNT', key, alive, '+inf') - (score and 1 or 0)
local write = redis.call('ZSCORE', key, '__write__')
if write and write + 0 > now and score then others = others - 1 end
if others > 0 then
  local latest = redis.call('ZREVRANGEBYSCORE', key, '+inf', alive, 'WITHSCORES', 'LIMIT', 0, 2)
  local holder = latest[1] ~= '__write__' and latest[1] or latest[3] or ''
  return {0, 1, latest[2] - now, holder, 0}
end
local ends = math.max(now + ttl, score and score + 0 or 0)
-- It comes first, because a full server refuses this command only as the first of a script.
redis.call('ZADD', key, ends, member, ends, '__write__')
redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
redis.call('PEXPIREAT', key, ends)
return {score and 2 or 1, 0}
