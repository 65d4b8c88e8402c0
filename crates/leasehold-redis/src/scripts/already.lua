-- Lets the lease of the asking token run on, and sets how many times it is held.
--
-- in:  the locals of load and find_mine, crowd, order, token, wanted_ttl, wanted_profile
-- out: answer
local holds = string.match(wanted_profile, '^%d+')
if holder == token then
  if now + wanted_ttl * 1000 > since + ttl * 1000 then since, ttl = now, wanted_ttl end
  profile, dirty = string.gsub(profile, '^%d+', holds, 1), true
  answer = {'already', epoch, first, count, holds + 0}
else
  local before, held, expires, rest, e, f, n, label =
    string.match(entry, '^(holds %l (%d+) )(%d+)( %d+ (%d+) (%d+) (%d+) )%d+( .*)$')
  expires = math.max(expires + 0, now + wanted_ttl * 1000)
  redis.call('ZADD', order, string.format('%.0f', expires - 9007199254740992),
    string.format('%016.0f %04.0f %s %s', f, e, held, token))
  redis.call('HSET', crowd, token,
    before .. string.format('%.0f', expires) .. rest .. holds .. label)
  dirty = true
  answer = {'already', e + 0, f + 0, n + 0, holds + 0}
end
