-- Reads the server's clock, the one line in all scripts that does.
local time = redis.call('TIME')
clock, clock_stamp = time[1] * 1000000 + time[2], time[1] .. ' ' .. time[2] .. ' '
now, stamp, least = clock, clock_stamp, floor(max(least, clock))
