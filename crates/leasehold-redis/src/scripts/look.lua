-- Looks whether what is wanted is to be had.
--
-- in: the lock at hand, what is wanted, and own, what the token has already; out: known, the place that it
-- brings, if that can have been given and is nobody else's; has_bond; free; and answer, where it is refused
local known, has_bond, free
if wide then
  has_bond = mode == 'j' and holders > 0 and taken == permits
  if brought >= 0 then
    local next_place, present = next_preferred, now
    if brought >= $BEHIND then next_place, present = next_other, now + $BEHIND end
    known = brought <= max(next_place - 1, present) and not get(pack('$PLACE', brought)) and brought
  end
end
if ends > 0 or holders + waiters + closed > 0 then
  -- A holder or waiter of a semaphore came under the limit of that time.
  local resized = limit > 0 and its_limit > 0 and (own or holder == token and ends > 0)
  if limit ~= its_limit and not resized then answer = {'wrong-kind', floor(limit)} end
end
if not answer and mode == 'p' and permits > its_limit then answer = {'too-many-permits'} end
free = closed == 0 and (wide and admits(mode, permits, its_limit) or not wide and ends == 0)
  and (not after or after_end == following - 1 and after_epoch == last_epoch)
-- Behind others that wait for its bond's end it might wait for itself.
if free and waiters > 0 and not has_bond then
  if known then free = known < head else free = preferred and head >= $BEHIND end
end
