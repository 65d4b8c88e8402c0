-- Refuses a request that its client has given up: it was delayed on its way, and would take what nobody uses.
if not_after > 0 and now > not_after then return redis.error_reply('LATE ' .. stamp) end
