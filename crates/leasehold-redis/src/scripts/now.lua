-- Reads the server's clock, the one line in all scripts that does, and what ARGV begins with.
--
-- ARGV  1  fail-over epoch, four digits; 0000 where there is none
--       2  the highest sequence that the client has seen from this store, sixteen digits
--       3  fence retention, ms
--
-- Texts of numbers are costly: %.0f and .. take twice as long as %d, which takes sixteen digits only where a
-- long has 64 bits. So where it counts, scripts write such numbers in two halves.
--
-- out: us         microseconds since the Unix epoch, sixteen digits
--      now        the same as a number (exact below 2^53: until 2255)
--      epoch, retention
--      least      the lowest sequence to issue, sixteen digits
local time = redis.call('TIME')
local sub, match, format = string.sub, string.match, string.format
local us = time[2]
if #us < 6 then us = sub('00000' .. us, -6) end
us = time[1] .. us
local now = us + 0
local epoch, least, retention = ARGV[1], ARGV[2], ARGV[3] + 0
if least < us then least = us end
