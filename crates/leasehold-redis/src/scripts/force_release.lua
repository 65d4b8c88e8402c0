-- Takes away the lease that has a fence, for an operator who has seen it. The next fence is above
-- any that the holder could still hand on.
--
-- KEYS  1       the lock
-- ARGV  1 to 3  see now.lua
--       4       epoch of the fence
--       5       sequence of the fence
--       6       from which of those who share it on; 1 to begin with
--
-- Returns one of
--   released
--   other-fence next [epoch fence …]   the first fences of those who hold it; next: where to go on,
--                                      or 0
--   not-held
-- or foreign, damaged, version or failed, as acquire says it.
--
-- Atomic for each of its calls, which look at up to $STEP holders. Works at the memory limit.
-- include: now
local frees = true
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
local its_epoch, sequence = ARGV[4] + 0, ARGV[5] + 0
local lock, other = open(KEYS[1], '')
if not lock then return other end
local function is_meant(lease)
  return lease.epoch == its_epoch and lease.first <= sequence
    and sequence < lease.first + lease.count
end
local before = head_of(lock)
expire_and_grant(lock)
local answer, found = {'not-held'}, false
if lock.holder then
  answer = {'other-fence', 0, lock.epoch, lock.first}
  if is_meant(lock) then lock.holder, found = nil, true end
elseif lock.holders > 0 then
  answer = {'other-fence', 0}
  local from, to = ARGV[6] + 0, math.min(lock.holders, ARGV[6] + $STEP - 1)
  fetch_holds(lock, from, to)
  local meant
  for number = from, to do
    local hold = hold_at(lock, number)
    if is_meant(hold) then meant = hold end
    answer[#answer + 1], answer[#answer + 2] = hold.epoch, hold.first
  end
  if to < lock.holders then answer[2] = to + 1 end
  if meant then
    drop_hold(lock, meant)
    found = true
  end
end
if found then
  -- One block can have as many fences as a count can say.
  lock.first, lock.count, lock.dirty = lock.first + lock.count, 1, true
  keep_until(lock, lock.first + lock.count)
  answer = {'released'}
end
expire_and_grant(lock)
tell_first(lock, before)
answer = commit(lock) or answer
return tell(answer)
