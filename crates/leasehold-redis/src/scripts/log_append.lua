-- Appends events to the log of a lock. The log keeps about its last events, and is forgotten after a while.
-- No other script knows the log.
--
-- KEYS[1]  the log, a stream
-- ARGV[1]  how many events to keep; some more may stay
-- ARGV[2]  how long the log is kept after its last event, in ms
-- and for each event
--   how many words follow, and the words: names and values alternately
--
-- Returns 1.
local at = 3
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  local words = {}
  for n = 1, count do
    words[n] = ARGV[at + n]
  end
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', unpack(words))
  at = at + count + 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
