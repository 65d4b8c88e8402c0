-- Changes the limit of a semaphore in use. Waiters that want more than there is lose their place:
-- those at the first $STEP places at once, those behind when they come to the head.
--
-- KEYS  1       the lock
-- ARGV  1 to 3  see now.lua
--       4       the new limit
--
-- Returns one of
--   set limit        what it was
--   not-in-use
--   wrong-kind 0     it is a lock
-- or foreign, damaged, version or failed, as acquire says it.
--
-- Atomic: one script. Works at the server's memory limit.
-- include: now
local frees = true
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
local limit = ARGV[4] + 0
local lock, other = open(KEYS[1], '')
if not lock then return other end
local before = head_of(lock)
expire_and_grant(lock)
local answer
if not (lock.holder or lock.holders > 0 or lock.waiters > 0 or lock.closed > 0) then
  answer = {'not-in-use'}
elseif lock.limit == 0 then
  answer = {'wrong-kind', 0}
else
  answer = {'set', lock.limit}
  lock.limit, lock.dirty = limit, true
  walk(lock, 0, function(place, text)
    local token, permits = match(text, '^%d+ %d+ %d+ %d+ %d+ (%S+) %d+ p (%d+) ')
    if permits and permits + 0 > limit then leave_line(lock, place, token) end
  end)
end
expire_and_grant(lock)
tell_first(lock, before)
answer = commit(lock) or answer
return tell(answer)
