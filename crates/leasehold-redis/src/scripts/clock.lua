-- Reads the server's clock. No other line in the scripts does.
local time = redis.call('TIME')
clock, clock_stamp = time[1] * 1000000 + time[2], time[1] .. ' ' .. time[2] .. ' '
now, stamp, least = clock, clock_stamp, floor(max(least, clock))
