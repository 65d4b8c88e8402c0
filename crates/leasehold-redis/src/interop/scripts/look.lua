-- Returns the holder of another library's lock.
--
-- KEYS  1   the lock
-- ARGV  1   the type that its value has
--
-- Returns an array
--   free      nothing in it
--   held      0 left value holds: how many ms it has yet (-1 without expiry), the string, field or
--             member of a holder, and how many times that one holds it
--   foreign   -1 type
--
-- Changes nothing.
local key = KEYS[1]
local kind = redis.call('TYPE', key).ok
if kind == 'none' then return {} end
if kind ~= ARGV[1] then return {-1, kind} end
local left = redis.call('PTTL', key)
if kind == 'string' then return {0, left, redis.call('GET', key), 1} end
if kind == 'hash' then
  local pair = redis.call('HGETALL', key)
  return {0, left, pair[1], tonumber(pair[2]) or 1}
end
-- Each member has an end of its own, whatever expiry the key has.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local latest = redis.call('ZREVRANGEBYSCORE', key, '+inf', '(' .. now, 'WITHSCORES', 'LIMIT', 0, 2)
if #latest == 0 then return {} end
return {0, latest[2] - now, latest[1] ~= '__write__' and latest[1] or latest[3] or '', 1}
