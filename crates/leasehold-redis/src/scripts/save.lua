-- Writes the record of one lock, if it changed, to live as long as it says something.
--
-- in:  the locals of load, main, crowd, retention (ms)
if dirty then
  local record
  if line_until > 0 then
    local last = redis.call('ZREVRANGEBYLEX', crowd, '(till!', '[till ', 'LIMIT', 0, 1)[1]
    line_until = string.match(last, '^till (%d+)') + 0
  end
  -- Until the time has passed the last fence, a new record would issue lower ones.
  local over = math.max(line_until, closed_until, first + count, now)
  if holder then
    over = math.max(over, since + ttl * 1000)
    record = string.format('leasehold/1 held %s %016.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %s %s',
      holder, since, ttl, line_until, closed_until, epoch, first, count, place, granted, profile)
  elseif taken > 0 or line_until > 0 or closed_until > 0 or limit > 0 then
    if taken > 0 then
      local last_end = redis.call('ZREVRANGEBYLEX', crowd, '(end!', '[end ', 'LIMIT', 0, 1)[1]
      over = math.max(over, string.match(last_end, '^end (%d+)') + 0)
    end
    record = string.format(
      'leasehold/1 many %s 0000000000000000 0 %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f',
      released or '--------------------------------', line_until, closed_until, epoch, first, count,
      place, limit, taken)
  else
    record = string.format('leasehold/1 free %s 0000000000000000 0 0 0 %.0f %.0f %.0f %.0f',
      released or '--------------------------------', epoch, first, count, place)
  end
  local keep = string.format('%.0f', math.ceil((over - now) / 1000) + retention)
  redis.call('SET', main, record, 'PX', keep)
  if line_until > 0 or taken > 0 then redis.call('PEXPIRE', crowd, keep) end
end
