-- Finds the time of the lock at hand. The server's clock may have been set back behind `given`, the last grant,
-- renewal, new waiter or cooldown. The time of a lock in use then goes on from there, and stays ahead of the clock.
now, stamp = clock, clock_stamp
if offset > 0 or given > clock and (ends > 0 or holders + waiters + closed > 0) then
  if given > clock + offset then offset, changed = given - clock, true end
  now = clock + offset
  stamp = format('%.0f %.0f ', floor(now / 1000000), now % 1000000)
end
