-- Reads a lock for people, and writes nothing.
--
-- KEYS[1]  the lock
-- ARGV[1]  see begin.lua
--
-- Returns an array with one answer, which is one of
--   now fields left   the present, all fields of the hash with their values, and the answer of PTTL; without fields if
--                     the lock does not exist
-- or failed, as acquire returns it.
--
-- Atomic. Reads all holders and waiters of the lock.
-- include: begin
-- include: clock
fields = try('HGETALL', keys[1])
local left = try('PTTL', keys[1])
local refused = fields.err or type(left) ~= 'number' and left.err
answer = refused and {'failed', refused} or {floor(now), fields, left}
-- include: only
