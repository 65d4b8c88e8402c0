-- Ends leases, or sets how many of their holds remain: each for itself. Repeating it after it ended
-- a lease gives the same answer until the lock is granted again, and for a shared lease for longer.
--
-- KEYS  i       the i-th lock
-- ARGV  1 to 3  see now.lua; and for the i-th lock, from 4i on:
--       token
--       epoch of the lease's fences
--       sequence of the last of them
--       an empty string to end the lease; else, separated by blanks:
--         how many holds are to remain; 0 ends the lease
--         cool-down, µs; 0 for none
--         1 to open the lock again that was closed for a while, else 0
--
-- Returns an array with one answer for each lock, which is one of
--   1                  an integer: released
--   still-held holds
--   late               it had run out, and nobody has held the lock since
--   not-held
-- or foreign, version or failed, as acquire says it.
--
-- Atomic: one script. Works at the server's memory limit.
-- include: now
local answers, rest = {}, {}
for i = 1, #KEYS do
  local key, at = KEYS[i], 4 * i
  local done = false
  if ARGV[at + 3] == '' and not rest[key] then
    -- Nobody waits and nothing is closed: the record stays as it is but for one word.
    local got = redis.pcall('HMGET', key, 'lock', 'line')
    local stored = got[1]
    if stored and not got[2] and sub(stored, 111, 142) == ARGV[at]
      and sub(stored, 1, 16) == 'leasehold/1 held' and sub(stored, 94, 109) == '0000000000000000'
      and sub(stored, 18, 33) + sub(stored, 144, 156) * 1000 > now
      and sub(stored, 144, 156) + 0 <= retention then
      -- At the memory limit the way below is open.
      done = not refusal_of(
        redis.pcall('HSET', key, 'lock', 'leasehold/1 free' .. sub(stored, 17)))
    end
  end
  -- What comes after it for the same lock waits for its turn, too.
  if done then answers[i] = 1 else rest[#rest + 1], rest[key] = i, true end
end
if #rest == 0 then return answers end
local frees = true
-- include: lock
-- include: crowd
-- include: line
-- include: settle
for _, i in ipairs(rest) do
  local at = 4 * i
  local token, its_epoch, last = ARGV[at], ARGV[at + 1] + 0, ARGV[at + 2] + 0
  local remaining, cooldown, opens = 0, 0, false
  if ARGV[at + 3] ~= '' then
    local how
    remaining, cooldown, how = match(ARGV[at + 3], '^(%d+) (%d+) (%d)$')
    remaining, cooldown, opens = remaining + 0, cooldown + 0, how == '1'
  end
  local lock, answer = open(KEYS[i], token)
  if lock then
    local before = head_of(lock)
    settle(lock)
    local closed, ended = lock.closed, false
    local mine, hold = lock.holder == token, hold_of(lock, token)
    if remaining > 0 and (mine or hold) then
      if mine then
        lock.profile, lock.dirty = digits(remaining) .. match(lock.profile, '^%d+(.*)$'), true
      else
        hold.profile = digits(remaining) .. match(hold.profile, '^%d+(.*)$')
        put_hold(lock, hold)
      end
      answer = {'still-held', remaining}
    elseif mine or hold then
      if mine then lock.holder = nil else drop_hold(lock, hold) end
      remember_release(lock, token, hold)
      ended, answer = true, 1
    elseif has_released(lock, token) then
      answer = 1
    elseif is_late(lock, its_epoch, last) then
      ended, answer = true, {'late'}
    else
      answer = {'not-held'}
    end
    if ended then
      if opens then reopen(lock) end
      close(lock, cooldown)
    end
    -- A head that reckons with the end of a lease has to reckon with the cool-down now.
    if lock.closed > closed then before = nil end
    settle(lock)
    tell_first(lock, before)
    answer = commit(lock) or answer
  end
  answers[i] = answer
end
tell()
return answers
