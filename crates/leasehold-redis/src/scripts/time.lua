-- Finds the time of the lock at hand. What is in use goes on from when something was last given, also where the server's
-- clock was set back behind that; the present is ahead of that clock from then on.
now, stamp = clock, clock_stamp
if offset > 0 or given > clock and (ends > 0 or holders + waiters + closed > 0) then
  if given > clock + offset then offset, changed = given - clock, true end
  now = clock + offset
  stamp = format('%.0f %.0f ', floor(now / 1000000), now % 1000000)
end
