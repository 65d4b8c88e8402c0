-- Grants the lock to the asking token.
--
-- in:  the locals of load, settled, crowd, order, token, mode, permits, wanted_limit, wanted_ttl,
--      wanted_profile, block, close_for
-- include: issue
limit = wanted_limit
if close_for > 0 then
  closed_until = math.max(closed_until, now + close_for)
  -- A head that reckons with the end of a lease has to reckon with this now.
  head_before = false
end
if mode == 'x' then
  holder, since, ttl, profile = token, now, wanted_ttl, wanted_profile
  granted = string.format('%.0f', now)
else
  -- include: begin_crowd
  taken = taken + permits
  redis.call('HSET', crowd, token, string.format('holds %s %s %.0f %.0f %.0f %.0f %.0f %s', mode,
    permits, now + wanted_ttl * 1000, now, epoch, first, count, wanted_profile))
  redis.call('ZADD', order, string.format('%.0f', now + wanted_ttl * 1000 - 9007199254740992),
    string.format('%016.0f %04.0f %s %s', first, epoch, permits, token))
end
