-- Gives up whatever a token has: a place in line, or a lease.
--
-- KEYS  1       the lock
-- ARGV  1 to 3  see now.lua
--       4       token
--       5       1 to open the lock again that the grant closed, else 0
--
-- Returns one of
--   left       it was waiting
--   released   it held the lease
--   not-held   it had nothing
-- or foreign, version or failed, as acquire says it.
--
-- Atomic: one script. Works at the server's memory limit.
-- include: now
local frees = true
-- include: lock
-- include: crowd
-- include: line
-- include: settle
local token = ARGV[4]
local lock, foreign = open(KEYS[1], token)
if not lock then return foreign end
local before = head_of(lock)
settle(lock)
local answer = {'not-held'}
local mine, hold, place = lock.holder == token, hold_of(lock, token), place_of(lock, token)
if place then
  leave_line(lock, place, token)
  answer = {'left'}
elseif mine or hold then
  if mine then lock.holder = nil else drop_hold(lock, hold) end
  remember_release(lock, token, hold)
  if ARGV[5] == '1' then reopen(lock) end
  answer = {'released'}
end
settle(lock)
tell_first(lock, before)
answer = commit(lock) or answer
tell()
return answer
