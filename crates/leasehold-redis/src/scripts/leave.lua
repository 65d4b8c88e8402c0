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
-- include: usual
-- Takes a waiter out of the line behind an exclusive lease, where nobody becomes first by that.
--
-- Returns whether it is done; else the general way is open, and nothing is changed.
local function leave_usual(key, token)
  local got = redis.pcall('HMGET', key, 'lock', 'line', token)
  local stored, line, name = got[1], got[2], got[3]
  if not stored or not line or not name or string.byte(name) ~= 35 then return false end
  if not usual_end(stored) or sub(stored, 111, 142) == token or redis.call('PTTL', key) == -1 then
    return false
  end
  local _, start, other, head, tail, number = usual_line(line)
  local place = sub(name, 2) + 0
  if not start or place < head + 0 or place > tail + 0 then return false end
  if number == '1' then
    if refusal_of(redis.pcall('HSET', key, name, '', token, '', 'line', '')) then return false end
    redis.pcall('HDEL', key, name, token, 'line')
    return true
  end
  if name == '#' .. head then return false end
  local fewer = number - 1
  line = start .. other .. ' ' .. fewer .. ' ' .. head .. '-' .. tail .. '/' .. fewer
  if refusal_of(redis.pcall('HSET', key, name, '', token, '', 'line', line)) then return false end
  redis.pcall('HDEL', key, name, token)
  return true
end
if leave_usual(KEYS[1], ARGV[4]) then return {'left'} end
local frees = true
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
local token = ARGV[4]
local lock, foreign = open(KEYS[1], token)
if not lock then return foreign end
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
