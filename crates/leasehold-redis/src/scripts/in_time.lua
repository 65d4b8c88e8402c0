-- Refuses a request that its client has given up: it was delayed on its way, and would take what nobody uses. No request is
-- good for so long as $VALID: the clock was set back since its client heard of it.
if not_after > 0 and (clock > not_after or clock < not_after - $VALID) then return redis.error_reply('LATE ' .. clock_stamp) end
