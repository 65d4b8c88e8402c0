-- Writes the record of one lock, if it changed, to live as long as it says something.
--
-- in:  the locals of load, main, crowd, order, retention (ms)
if dirty then
  local record
  -- Until the time has passed the last fence, a new record would issue lower ones.
  local over = math.max(latest, closed_until, first + count, now)
  if holder then
    over = math.max(over, since + ttl * 1000)
    -- A holder that is asked to let go has a word of its own, which no short way takes.
    local shape = string.find(profile, '^%d+ [^ ]* [^ ]* ') and 'want' or 'held'
    record = string.format(
      'leasehold/1 %s %s %016.0f %016.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %s %s',
      shape, holder, since, place, soonest, latest, closed_until, ttl, epoch, first, count, granted,
      profile)
  elseif taken > 0 or latest > 0 or closed_until > 0 or limit > 0 then
    if taken > 0 then
      local last_end = redis.call('ZREVRANGEBYSCORE', order, '(-4503599627370496', '-inf',
        'WITHSCORES', 'LIMIT', '0', '1')[2]
      over = math.max(over, last_end + 9007199254740992)
    end
    record = string.format(
      'leasehold/1 many %s 0000000000000000 %016.0f %.0f %.0f %.0f 0 %.0f %.0f %.0f %.0f %.0f',
      released or '--------------------------------', place, soonest, latest, closed_until, epoch,
      first, count, limit, taken)
  else
    record = string.format(
      'leasehold/1 free %s 0000000000000000 %016.0f 0 0 0 0 %.0f %.0f %.0f',
      released or '--------------------------------', place, epoch, first, count)
  end
  local keep = string.format('%.0f', math.ceil((over - now) / 1000) + retention)
  redis.call('SET', main, record, 'PX', keep)
  if latest > 0 or taken > 0 then
    redis.call('PEXPIRE', crowd, keep)
    redis.call('PEXPIRE', order, keep)
  end
end
