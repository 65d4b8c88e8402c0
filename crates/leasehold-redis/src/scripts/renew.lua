-- Lets leases run on, each for itself: never creates one, never takes one away.
--
-- KEYS  i       the i-th lock
-- ARGV  1 to 3  see now.lua; and for the i-th lock, from 5i-1 on:
--       token
--       epoch of the lease's fences
--       sequence of the last of them; an exclusive lease takes over what is above all issued
--       ttl, ms, from now, thirteen digits
--       1 when the lease may end earlier than it would have, else 0; directly behind it the token
--       that the lease is to have from now on, if it is handed over
--
-- Returns an array with one answer for each lock, which is one of
--   1         an integer: renewed
--   2         renewed, and its holder is asked to let go
--   late      it had run out, and nobody has held the lock since; it stays ended
--   not-held
-- or foreign, version or failed, as acquire says it.
--
-- Atomic for each lock. Keys of several slots must not be given to a cluster. Works at the server's
-- memory limit.
-- include: now
local answers, rest = {}, {}
for i = 1, #KEYS do
  local key, at = KEYS[i], 5 * i - 1
  local done = false
  -- Nobody in line has run out, and nothing is closed: only the time of the renewal changes.
  local got = redis.pcall('HMGET', key, 'lock', 'line')
  local stored, line = got[1], got[2]
  -- Two renewals of one lease take effect in their order.
  if not rest[key] and #ARGV[at + 4] == 1 and stored and sub(stored, 111, 142) == ARGV[at]
    and sub(stored, 1, 16) == 'leasehold/1 held'
    and sub(stored, 94, 109) == '0000000000000000' and (not line or sub(line, 1, 16) > us) then
    local ends = sub(stored, 18, 33) + sub(stored, 144, 156) * 1000
    local ends_now = now + ARGV[at + 3] * 1000
    local beyond = ARGV[at + 2] - sub(stored, 35, 50) - sub(stored, 52, 61)
    if ends > now and (beyond < -1 or beyond == -1 and ARGV[at + 1] + 0 <= sub(stored, 158, 161) + 0)
      and sub(stored, 80, 92) * 1000 >= ends_now + retention * 1000
      and redis.call('PTTL', key) ~= -1 then
      -- Also what changes nothing is written: whoever waits for replicas waits for a write.
      local record = stored
      if ends_now > ends or ARGV[at + 4] == '1' then
        record = sub(stored, 1, 17) .. us .. sub(stored, 34, 143) .. ARGV[at + 3]
          .. sub(stored, 157)
      end
      -- At the memory limit the way below is open.
      done = not refusal_of(redis.pcall('HSET', key, 'lock', record))
    end
  end
  if done then answers[i] = 1 else rest[#rest + 1], rest[key] = i, true end
end
if #rest == 0 then return answers end
local frees = true
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
for _, i in ipairs(rest) do
  local at = 5 * i - 1
  local token, its_epoch, last = ARGV[at], ARGV[at + 1] + 0, ARGV[at + 2] + 0
  local wanted_ttl, shorten = ARGV[at + 3] + 0, sub(ARGV[at + 4], 1, 1) == '1'
  local successor = sub(ARGV[at + 4], 2)
  local lock, answer = open(KEYS[i], token)
  if lock then
    local before = head_of(lock)
    expire_and_grant(lock)
    if successor ~= '' then
      if lock.holder ~= successor and not get(lock, successor) then hand_to(lock, token, successor) end
      token = successor
    end
    local ends, asked = now + wanted_ttl * 1000, '^%d+ [^ ]* [^ ]* '
    local hold = hold_of(lock, token)
    if lock.holder == token or hold then lock.dirty = true end
    if lock.holder == token then
      if shorten or ends > lock.since + lock.ttl * 1000 then
        lock.since, lock.ttl, lock.dirty = now, wanted_ttl, true
        keep_until(lock, ends)
      end
      local issued = lock.first + lock.count - 1
      if last > issued or last == issued and its_epoch > lock.epoch then
        lock.epoch, lock.first, lock.dirty = its_epoch, last - lock.count + 1, true
        keep_until(lock, last + 1)
      end
      answer = string.find(lock.profile, asked) and 2 or 1
    elseif hold then
      if shorten or ends > hold.expires then
        hold.expires = ends
        put_hold(lock, hold)
        will_end(lock, hold)
      end
      answer = string.find(hold.profile, asked) and 2 or 1
    elseif is_late(lock, its_epoch, last) then
      answer = {'late'}
    else
      answer = {'not-held'}
    end
    tell_first(lock, before)
    answer = commit(lock) or answer
  end
  answers[i] = answer
end
return tell(answers)
