-- Finds when the lock could serve somebody at the earliest, and the holder whose lease ends first.
--
-- in:  the locals of load, settled
-- out: free_in  µs from now
--      next_*   that holder's mode, permits, epoch, first fence, grant, end and profile, if any
do
  if holder then
    next_mode, next_permits, next_epoch, next_first = 'x', 1, epoch, first
    next_granted, next_expires, next_profile = granted, since + ttl * 1000, profile
  elseif taken > 0 then
    -- include: next_end
    next_expires = expires
    next_mode, next_permits, next_granted, next_epoch, next_first, next_profile = string.match(
      redis.call('HGET', crowd, who) or '',
      '^holds (%l) (%d+) %d+ (%d+) (%d+) (%d+) %d+ (.*)$')
  end
  free_in = 0
  if next_expires then free_in = next_expires - now end
  if closed_until - now > free_in then free_in = closed_until - now end
end
