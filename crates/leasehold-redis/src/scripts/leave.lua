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
local key, token, try, type = KEYS[1], ARGV[4], redis.pcall, type
-- Takes a waiter out of the line behind an exclusive lease, where nobody becomes first by that. Whatever
-- is otherwise is left to the general way, and nothing is changed.
repeat
  local got = try('HMGET', key, 'state', 'line', token)
  local state, line, name = got[1], got[2], got[3]
  if not line or not name or string.byte(name) ~= 35 then break end
  -- include: usual
  if not start or sub(state, 15, 46) == token then break end
  local lives = try('PTTL', key)
  if type(lives) ~= 'number' or lives == -1 then break end
  local place = sub(name, 2) + 0
  if place < head + 0 or place > tail + 0 then break end
  if waiters == '1' then
    local written = try('HSET', key, name, '', token, '', 'line', '', 'state', sub(state, 1, 85))
    if refusal_of(written) then break end
    try('HDEL', key, name, token, 'line')
    return {'left'}
  end
  if name == '#' .. head then break end
  local fewer = waiters - 1
  line = start .. other .. ' ' .. fewer .. ' ' .. head .. '-' .. tail .. '/' .. fewer
  if refusal_of(try('HSET', key, name, '', token, '', 'line', line)) then break end
  try('HDEL', key, name, token)
  return {'left'}
until true
local frees = true
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
local lock, foreign = open(key, token)
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
