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
-- or foreign, damaged, version or failed, as acquire says it.
--
-- Atomic: one script. Works at the server's memory limit.
-- include: now
local key, token, try, type = KEYS[1], ARGV[4], redis.pcall, type
-- Takes a waiter out of a plain line, where nobody becomes first by that. Whatever is otherwise is left to the
-- general way, and nothing is changed.
repeat
  local got = try('HMGET', key, 'state', token)
  local state, name = got[1], got[2]
  if not state or #state < 152 or not name or #name ~= 17 then break end
  local lease_ends, place, head = sub(state, 70, 85), sub(name, 2), sub(state, 104, 119)
  -- Where no exclusive lease ends there is a word, and letters are above digits.
  if lease_ends <= us or lease_ends > ':' or sub(state, 87, 102) <= us then break end
  if sub(state, 15, 46) == token or place < head or place >= sub(state, 121, 136) then break end
  local gone = sub(state, 152) + 1
  if sub(state, 121, 136) - head == gone then
    state = sub(state, 1, 85)
  elseif place == head then
    break
  else
    state = sub(state, 1, 151) .. gone
  end
  if type(try('HSET', key, name, '', token, '', 'state', state)) ~= 'number' then break end
  try('HDEL', key, name, token)
  return {'left'}
until true
local frees = true
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
local lock, other = open(key, token)
if not lock then return other end
local before = head_of(lock)
expire_and_grant(lock)
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
expire_and_grant(lock)
tell_first(lock, before)
answer = commit(lock) or answer
return tell(answer)
