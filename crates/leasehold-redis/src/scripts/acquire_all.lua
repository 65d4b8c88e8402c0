-- Takes several locks, or none of them.
--
-- KEYS  i  the i-th lock
-- ARGV  as for acquire, without places in line
--
-- Returns one of
--   granted {epoch fence count …}  all are held, under these fences
--   blocked i answer               the i-th, counted from 0, is not to be had, for the reason that
--                                  acquire would answer; none was taken
--
-- Atomic: one script. Keys of several slots must not be given to a cluster.
-- include: asked
local frees = false
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
-- include: take
local opened, blocked = {}, nil
for i = 1, #KEYS do
  local wanted = wanted_of(i)
  local lock, answer = open(KEYS[i], wanted.token)
  -- Nothing is changed then, of the others either.
  if not lock then return {'blocked', i - 1, answer} end
  local before = head_of(lock)
  expire_and_grant(lock)
  tell_first(lock, before)
  local mine, hold = lock.holder == wanted.token, hold_of(lock, wanted.token)
  local waits = place_of(lock, wanted.token)
  answer = refusal(lock, wanted, mine or hold or waits)
  if not answer and not mine and not hold and (waits or not is_free(lock, wanted)) then
    answer = add_contention(lock, {'busy'})
  end
  opened[i] = {lock = lock, wanted = wanted, mine = mine, hold = hold}
  if answer then
    blocked = {'blocked', i - 1, answer}
    break
  end
end
local fences = {}
for i = 1, #opened do
  local it = opened[i]
  local lock, wanted = it.lock, it.wanted
  if not blocked then
    local at, before, closed = #fences, head_of(lock), lock.closed
    if it.mine or it.hold then
      local answer = prolong(lock, wanted, it.hold)
      fences[at + 1], fences[at + 2], fences[at + 3] = answer[2], answer[3], answer[4]
    else
      grant(lock, wanted)
      fences[at + 1], fences[at + 2], fences[at + 3] = lock.epoch, lock.first, lock.count
    end
    -- A head that reckons with the end of a lease has to reckon with the closing now.
    if lock.closed > closed then before = nil end
    tell_first(lock, before, nil)
  end
end
for i = 1, #opened do
  local failed = commit(opened[i].lock)
  if failed then
    -- Those before it are taken, so this is not to look like nothing.
    if i > 1 then error(failed[2], 0) end
    return {'blocked', 0, failed}
  end
end
return tell(blocked or {'granted', fences})
