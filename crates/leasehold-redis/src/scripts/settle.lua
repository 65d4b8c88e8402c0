-- Drops what is over, and hands what came free to the line.
--
-- in:  the locals of load, crowd, order, now, floor_epoch
-- out: the same locals brought up to date; head_* describe the first in line, or head is nil.
--      head_before is the first in line as it was when the script began.
if holder and since + ttl * 1000 <= now then
  holder, dirty = nil, true
end
while taken > 0 do
  -- include: next_end
  if not who then
    taken, dirty = 0, true
    break
  end
  if expires > now then break end
  redis.call('ZREM', order, lease)
  redis.call('HDEL', crowd, who)
  taken, dirty = taken - string.match(lease, '^%d+ %d+ (%d+)'), true
end
if closed_until > 0 and closed_until <= now then
  closed_until, dirty = 0, true
end
head = nil
while latest > 0 do
  head = redis.call('ZRANGEBYSCORE', order, '0', '+inf', 'LIMIT', '0', '1')[1]
  if head_before == nil then head_before = head or false end
  if not head then
    soonest, latest, dirty = 0, 0, true
    break
  end
  local mode, permits, block, channel, ticket, beat, window, seen, label = string.match(
    redis.call('HGET', crowd, head) or '',
    '^waits (%l) (%d+) (%d+) (%S+) (%d+) (%d+) (%d+) (%d+) %d+ %d+ (.*)$')
  local left = mode and seen + window * 1000 - now or 0  -- of its place, µs
  local admitted = left > 0 and closed_until == 0 and not holder
    and (mode == 's' or mode == 'x' and taken == 0 or mode == 'p' and taken + permits <= limit)
  if left > 0 and not admitted then
    head_channel, head_ticket, head_seen, head_window = channel, ticket, seen + 0, window + 0
    break
  end
  redis.call('ZREM', order, head, 'till ' .. head)
  redis.call('HDEL', crowd, head)
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
      redis.call('HSET', crowd, head, string.format('holds %s %s %.0f %.0f %.0f %.0f %.0f 1 %s',
        mode, permits, now + left, now, epoch, first, count, label))
      redis.call('ZADD', order, string.format('%.0f', now + left - 9007199254740992),
        string.format('%016.0f %04.0f %s %s', first, epoch, permits, head))
    end
    redis.pcall('PUBLISH', channel,
      string.format('granted %s %s %.0f %.0f %.0f', ticket, beat, epoch, first, count))
  end
end
