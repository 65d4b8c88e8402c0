-- Refuses a request whose client no longer waits for it: it was delayed on its way, and its grant would have no user. A
-- request is also refused if its moment is more than $VALID ahead: then the clock was set back after the client read
-- it.
if not_after > 0 and (clock > not_after or clock < not_after - $VALID) then return redis.error_reply('LATE ' .. clock_stamp) end
