-- Drops what is over, and hands what came free to the line.
--
-- in:  the locals of load, crowd, now, floor_epoch
-- out: the same locals brought up to date; head_* describe the first in line, or head is nil.
--      head_before is the first in line as it was when the script began.
if holder and since + ttl * 1000 <= now then
  holder, dirty = nil, true
end
while taken > 0 do
  local next_end = redis.call('ZRANGEBYLEX', crowd, '[end ', '(end!', 'LIMIT', 0, 1)[1]
  if not next_end then
    taken, dirty = 0, true
    break
  end
  local expires, permits, who = string.match(next_end, '^end (%d+) %d+ %d+ (%d+) (%S+)$')
  if expires + 0 > now then break end
  redis.call('ZREM', crowd, next_end)
  redis.call('ZREMRANGEBYLEX', crowd, '[who ' .. who, '(who ' .. who .. '!')
  taken, dirty = taken - permits, true
end
if closed_until > 0 and closed_until <= now then
  closed_until, dirty = 0, true
end
head = nil
while line_until > 0 do
  local line = redis.call('ZRANGEBYLEX', crowd, '[line ', '(line!', 'LIMIT', 0, 1)[1]
  head_place, head = string.match(line or '', '^line (%d+) (%S+)$')
  if head_before == nil then head_before = head_place or false end
  if not head then
    line_until, dirty = 0, true
    break
  end
  local entry = redis.call('ZRANGEBYLEX', crowd, '[who ' .. head, '(who ' .. head .. '!')[1]
  local mode, permits, channel, ticket, beat, window, block, seen, label = string.match(entry or '',
    '^who %S+ waits (%l) (%d+) %d+ (%S+) (%d+) (%d+) (%d+) (%d+) %d+ (%d+) (.*)$')
  local left = mode and seen + window * 1000 - now or 0  -- of its place, µs
  local admitted = left > 0 and closed_until == 0 and not holder
    and (mode == 's' or mode == 'x' and taken == 0 or mode == 'p' and taken + permits <= limit)
  if left > 0 and not admitted then
    head_channel, head_ticket, head_seen, head_window = channel, ticket, seen + 0, window + 0
    break
  end
  if mode then
    redis.call('ZREM', crowd, line, entry,
      string.format('till %016.0f %s %s', now + left, head_place, head))
  else
    redis.call('ZREM', crowd, line)
  end
  dirty = true
  -- A waiter that was not heard for half of its window is passed over.
  if admitted and 2 * left >= window * 1000 then
    if epoch < floor_epoch then epoch = floor_epoch end
    first, count, released = math.max(first + count, now), block + 0, nil
    if mode == 'x' then
      holder, since, ttl, granted = head, seen + 0, window + 0, string.format('%.0f', now)
      profile = '1 ' .. label
    else
      taken = taken + permits
      redis.call('ZADD', crowd,
        0, string.format('end %016.0f %04.0f %016.0f %s %s', now + left, epoch, first, permits, head),
        0, string.format('who %s holds %s %s %.0f %.0f %.0f %.0f %.0f 1 %s',
          head, mode, permits, now + left, now, epoch, first, count, label))
    end
    redis.pcall('PUBLISH', channel,
      string.format('granted %s %s %.0f %.0f %.0f', ticket, beat, epoch, first, count))
  end
end
