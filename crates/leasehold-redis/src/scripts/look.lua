-- Decides whether the lock can be acquired as wanted.
--
-- in: the lock at hand, what is wanted, and own, what the token has already; out: known, the place that the request
-- brings, if it can have been given and is free; has_bond; free; and answer, if the request is refused
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
  -- A token that is already here came under the limit of its time, which set_limit may have changed since.
  local resized = limit > 0 and its_limit > 0 and (own or holder == token and ends > 0)
  if limit ~= its_limit and not resized then answer = {'wrong-kind', floor(limit)} end
end
if not answer and mode == 'p' and permits > its_limit then answer = {'too-many-permits'} end
free = closed == 0 and (wide and admits(mode, permits, its_limit) or not wide and ends == 0)
  and (not after or after_end == following - 1 and after_epoch == last_epoch)
-- Waiters ahead may wait for the end of this bond: behind them, a request with the bond might wait for itself.
if free and waiters > 0 and not has_bond then
  if known then free = known < head else free = preferred and head >= $BEHIND end
end
