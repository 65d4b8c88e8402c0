-- Takes the lease of token away, which has one.
--
-- in:  the locals of load, entry: what the crowd says of it, unless it holds alone
if entry then
  local permits, expires, e, f =
    string.match(entry, '^who %S+ holds %l (%d+) (%d+) %d+ (%d+) (%d+) ')
  redis.call('ZREM', crowd, entry,
    string.format('end %016.0f %04.0f %016.0f %s %s', expires, e, f, permits, token))
  taken = taken - permits
else
  holder = nil
end
released, dirty = token, true
