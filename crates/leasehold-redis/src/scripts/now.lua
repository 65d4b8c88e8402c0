-- Reads the server's clock: the one line in all scripts that does.
--
-- out: time  its seconds and microseconds, as strings
--      now   microseconds since the Unix epoch, as a number (exact below 2^53: until 2255)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
