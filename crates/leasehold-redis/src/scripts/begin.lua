-- The beginning of every operation: short names, what the client says of itself, and the lock at hand.
--
-- ARGV[1]  the request: $CLIENT, and what the operation needs. $CLIENT: fail-over epoch; the moment after which the
--          client no longer waits for this request, or 0; the highest sequence that it has seen here; how long a lock
--          is remembered
--
-- Moments are µs since the Unix epoch, and lengths are µs: numbers that a double has exactly. A script works on one
-- lock at a time. It reads, decides, and writes all in one HSET, so a script that is stopped earlier has changed
-- nothing. An empty field counts as absent.
local keys, request = KEYS, ARGV[1]
local try, type, byte, sub, format = redis.pcall, type, string.byte, string.sub, string.format
local max, min, floor = math.max, math.min, math.floor
local pack, unpack, spread = struct.pack, struct.unpack, unpack
local epoch, not_after, least, retention, at = unpack('$CLIENT', request)
-- The present, also as text: by the server's clock, and by the time of the lock at hand, which never goes back.
local clock, clock_stamp, now, stamp
-- The lock at hand: its state, as docs/wire.md has it.
local key, state, shape, kept, holder, ends, given, following, last_epoch
local waiters, head, tail, longest, soonest
local offset, asked, closed, limit, walked, least_window, next_preferred, next_other
local holders, taken, first_end, nearest, cursor, least_end, ranges
-- Its other fields, as read or staged, and the names of those staged; false removes one.
local fields, names
-- Whether its state changed; a moment until which the record is needed, beside those in the state; an error of a read.
local changed, latest, failed
-- Whether others share the lock or wait for it, or it is cooling down; and whether anything was written yet.
local wide, written
-- The token whose lease can't expire in this call, because the call ends it.
local survives
local token, answer, messages, unsent
-- Made for the first lock that needs them: Lua makes functions again in each call.
local get, put, what, found_again, put_hold, admits, add_hold, drop_hold, hold_at, lost_hold
local settle, tell_first, nearest_hold, issue, leave_line, make_place
