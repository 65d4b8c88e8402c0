-- The beginning of every acquisition: refuses a request whose client no longer waits for it, or that was sent before
-- the clock was set back.
--
-- ARGV  last   the moment after which it is late, packed: µs since the Unix epoch by the server's clock; 0 for none
--
-- Returns the error LATE with what the clock shows, in seconds and µs.
local time, latest = redis.call('TIME'), struct.unpack('<d', ARGV[#ARGV])
local clock = time[1] * 1000000 + time[2]
if latest > 0 and (clock > latest or clock < latest - 10000000) then
  return redis.error_reply('LATE ' .. time[1] .. ' ' .. time[2])
end
