-- Notes that holders are asked to let go.
--
-- KEYS  1       the lock
-- ARGV  1 to 3  see now.lua
--       4       epoch of the fence of the lease that is meant, or an empty string for all
--       5       sequence of that fence
--       6       who asks, in the form of an owner in a label
--       7       from which of those who share it on; 1 to begin with
--
-- Returns one of
--   asked holders next   next: where to go on, or 0
--   foreign, damaged, version or failed, as acquire says it
--
-- Atomic for each of its calls, which look at up to $STEP holders.
-- include: now
local frees = false
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
local all, its_epoch, sequence = ARGV[4] == '', tonumber(ARGV[4]), tonumber(ARGV[5])
local lock, other = open(KEYS[1], '')
if not lock then return other end
local function is_meant(lease)
  return all or lease.epoch == its_epoch and lease.first <= sequence
    and sequence < lease.first + lease.count
end
local before = head_of(lock)
expire_and_grant(lock)
tell_first(lock, before)
local asked, onward = 0, 0
if lock.holder then
  if is_meant(lock) then
    lock.profile = match(lock.profile, '^%d+ [^ ]* [^ ]*') .. ' ' .. ARGV[6]
    asked, lock.dirty = 1, true
  end
else
  local from, to = ARGV[7] + 0, math.min(lock.holders, ARGV[7] + $STEP - 1)
  fetch_holds(lock, from, to)
  for number = from, to do
    local hold = hold_at(lock, number)
    if is_meant(hold) then
      hold.profile = match(hold.profile, '^%d+ [^ ]* [^ ]*') .. ' ' .. ARGV[6]
      put_hold(lock, hold)
      asked = asked + 1
    end
  end
  if to < lock.holders then onward = to + 1 end
end
local failed = commit(lock)
return tell(failed or {'asked', asked, onward})
