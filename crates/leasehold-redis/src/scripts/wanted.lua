-- Reads what is wanted of the i-th lock. If several locks in a row want the same, it is sent and read once.
local which
key = keys[i]
token, which = unpack('$WHOSE', request, at + $WHOSE_SIZE * (i - 1))
if which ~= wish then
  local from, flags, size
  wish = which
  ttl, block, holds, mode, permits, its_limit, cooldown, flags, size, from = unpack('$WANTED', request, wish)
  preferred, waits, after = flags % 2 == 1, flags % 4 > 1, flags > 3
  brought = -1
  if waits then
    local length
    ticket, beat, window, behind, brought, most, length, from = unpack('$IN_LINE', request, from)
    channel, from = sub(request, from, from + length - 1), from + length
  elseif after then
    after_epoch, after_end, from = unpack('$AFTER', request, from)
  end
  label = sub(request, from, from + size - 1)
  -- A lease that is granted to a waiter is held once.
  waiting_label = waits and string.gsub(label, '^(%d+) %d+', '%1 1')
  -- The conditions for the usual case; what the lock then stores is made for the first such lock.
  usual, lasts = mode == 'x' and cooldown == 0 and not after, max(clock + ttl, least + block) + retention
  lease = nil
end
