-- Extends the lease that the token has, and sets how many times it is held. out: word
local its_holds = '%1 ' .. string.match(label, '^%d+ (%d+)')
given, changed, word = now, true, 'already'
if own == $SHARES then
  local _, number, its_end, first, its_epoch, its_block, its_mode, its_permits, from = unpack('$SHARER', record)
  local text = string.gsub(sub(record, from), '^(%d+ %d+ %d+) %d+', its_holds)
  if now + ttl > its_end then
    put_hold(token, number, now + ttl, first, its_epoch, its_block, its_mode, its_permits, text)
  else
    put(token, sub(record, 1, from - 1) .. text)
  end
else
  ends = max(ends, now + ttl)
  put('about', (string.gsub(get('about') or stamp .. label, '^(%d+ %d+ %d+) %d+', its_holds)))
end
