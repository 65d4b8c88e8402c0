-- Reads a lock for people, and writes nothing.
--
-- KEYS  1       the lock
-- ARGV  1 to 3  see now.lua
--
-- Returns the present, in µs, and all fields of the hash with their values, nothing for a lock that
-- there is not; or failed, as acquire says it.
--
-- Atomic: one script. Reads everybody who holds the lock or waits for it.
-- include: now
-- include: refusal
local fields = redis.pcall('HGETALL', KEYS[1])
if fields.err then return refusal_of(fields) end
return {now, fields}
