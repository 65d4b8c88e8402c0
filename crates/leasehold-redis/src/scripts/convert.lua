-- Changes the mode in which a lease is held, at once or not at all; its end stays what it is.
--
-- KEYS  1       the lock
-- ARGV  1 to 3  see now.lua
--       4       token
--       5       epoch of the lease's fences
--       6       sequence of the last of them
--       7       mode, 8 permits and 9 limit, as for acquire
--       10      how many fences to reserve where new ones are issued
--
-- Returns one of
--   converted epoch fence count
--   busy others          shared holders, or permits that others have
--   wrong-kind limit
--   too-many-permits
--   late                 it had run out, and nobody has held the lock since
--   not-held
-- or foreign, damaged, version or failed, as acquire says it.
--
-- Atomic: one script. Works at the server's memory limit.
-- include: now
local frees = true
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
local token, its_epoch, last = ARGV[4], ARGV[5] + 0, ARGV[6] + 0
local mode, permits, limit, block = ARGV[7], ARGV[8] + 0, ARGV[9] + 0, ARGV[10] + 0
local lock, other = open(KEYS[1], token)
if not lock then return other end
local before = head_of(lock)
expire_and_grant(lock)
local answer
local mine, hold = lock.holder == token, hold_of(lock, token)
local more = hold and permits - hold.permits
if not mine and not hold then
  answer = {is_late(lock, its_epoch, last) and 'late' or 'not-held'}
elseif lock.limit ~= limit or mode == 'j' or hold and hold.mode == 'j' then
  answer = {'wrong-kind', lock.limit}
elseif mine and mode == 's' then
  if its_epoch ~= lock.epoch or last ~= lock.first + lock.count - 1 then
    -- A downgrade that arrives again after a later upgrade must not undo it.
    answer = {'not-held'}
  else
    local expires, granted, profile = lock.expires, lock.granted, lock.profile
    lock.holder = nil
    add_hold(lock, {
      mode = 's', permits = 1, token = token, profile = profile, expires = expires,
      granted = granted, epoch = lock.epoch, first = lock.first, count = lock.count,
    })
    answer = {'converted', lock.epoch, lock.first, lock.count}
  end
elseif mine then
  answer = {'converted', lock.epoch, lock.first, lock.count}
elseif mode == 'x' then
  if lock.holders > 1 then
    answer = {'busy', lock.holders - 1}
  else
    drop_hold(lock, hold)
    issue(lock, block)
    lock.holder, lock.granted, lock.profile = token, hold.granted, hold.profile
    lock.expires = hold.expires
    answer = {'converted', lock.epoch, lock.first, lock.count}
  end
elseif mode == 'p' and permits > limit then
  answer = {'too-many-permits'}
elseif more > 0 and (lock.waiters > 0 or lock.taken + more > limit) then
  answer = {'busy', lock.taken - hold.permits}
else
  if more ~= 0 then
    hold.permits, lock.taken, lock.dirty = permits, lock.taken + more, true
    put_hold(lock, hold)
  end
  answer = {'converted', hold.epoch, hold.first, hold.count}
end
-- Also what changes nothing is written: whoever waits for replicas waits for a write.
if answer[1] == 'converted' then lock.dirty = true end
expire_and_grant(lock)
tell_first(lock, before)
answer = commit(lock) or answer
return tell(answer)
