-- Takes the lease of token away, which has one.
--
-- in:  the locals of load, entry: what the crowd says of it, unless it holds alone
if entry then
  local permits, e, f = string.match(entry, '^holds %l (%d+) %d+ %d+ (%d+) (%d+) ')
  redis.call('ZREM', order, string.format('%016.0f %04.0f %s %s', f, e, permits, token))
  redis.call('HDEL', crowd, token)
  taken = taken - permits
else
  holder = nil
end
released, dirty = token, true
