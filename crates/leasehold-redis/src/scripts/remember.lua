-- Remembers that the token released its lease, for a release that is repeated. in: first, hold_epoch, block
if hold_epoch == last_epoch and first + block == following then
  holder = token
else
  put('ended', sub(token .. (get('ended') or ''), 1, 16 * $REMEMBERED))
end
