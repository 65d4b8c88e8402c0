-- What every acquisition begins with: refuses one that its client has given up.
--
-- ARGV  last   the moment after which it is late, packed: µs since the Unix epoch by the server's clock; 0 for none
--
-- Returns the error LATE with what the clock shows, in seconds and µs.
local time, latest = redis.call('TIME'), struct.unpack('<d', ARGV[#ARGV])
if latest > 0 and time[1] * 1000000 + time[2] > latest then
  return redis.error_reply('LATE ' .. time[1] .. ' ' .. time[2])
end
