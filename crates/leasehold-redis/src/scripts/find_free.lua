-- Looks whether the lock is to be had by somebody who has nothing of it.
--
-- in:  the locals of load, settled, order, mode, permits, wanted_limit, wanted_place or nil,
--      preferred
-- out: free
local free = closed_until == 0 and not holder and (mode == 's' or mode == 'x' and taken == 0
  or mode == 'p' and taken + permits <= wanted_limit)
if free and head then
  local first_place = redis.call('ZSCORE', order, head) + 0
  if wanted_place then
    free = wanted_place < first_place
  else
    free = preferred and first_place >= 4503599627370496
  end
end
