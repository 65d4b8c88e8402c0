-- What every operation begins and ends with: dropping what is over, handing what came free to the
-- line, and telling a new first in line.
--
-- in: lock.lua, crowd.lua, line.lua

-- Issues the next block of fences.
local function issue(lock, count)
  lock.first = math.max(lock.first + lock.count, least + 0)
  lock.count, lock.epoch, lock.released, lock.dirty = count, epoch + 0, nil, true
  keep_until(lock, lock.first + count)
end

-- Whether there is room for one more holder.
local function admits(lock, mode, permits, limit)
  if lock.holder then return false end
  if lock.holders == 0 and mode ~= 'p' then return true end
  if mode == 's' then return lock.taken < $BOND end
  if mode == 'x' then return false end
  if mode == 'j' then return lock.taken == permits end
  return lock.taken + permits <= limit
end

local function hand_over(lock, waiter)
  issue(lock, waiter.count)
  local profile = '1 ' .. waiter.label
  if waiter.mode == 'x' then
    lock.holder, lock.expires = waiter.token, waiter.seen + waiter.window * 1000
    lock.granted, lock.profile = now, profile
  else
    add_hold(lock, {
      mode = waiter.mode, permits = waiter.permits, token = waiter.token, profile = profile,
      expires = waiter.seen + waiter.window * 1000, granted = now,
      epoch = lock.epoch, first = lock.first, count = lock.count,
    })
  end
  say(lock, waiter.channel, format('granted %s %s %.0f %.0f %.0f', waiter.ticket, waiter.beat, lock.epoch,
    lock.first, lock.count))
end

-- A call serves or passes over at most $STEP waiters; the next one goes on.
local function expire_and_grant(lock)
  if lock.holder and lock.expires <= now then
    lock.holder, lock.dirty = nil, true
  end
  if lock.closed > 0 and lock.closed <= now then lock.closed, lock.dirty = 0, true end
  -- Once in a call, so that one HSET takes all that is staged: Lua unpacks no more than 8000 values.
  if not lock.swept then
    lock.swept = true
    if lock.holders > 0 and lock.ends <= now then sweep_crowd(lock) end
    if lock.waiters > 0 and lock.soonest <= now then sweep_line(lock) end
  end
  if lock.closed > 0 then return end
  for _ = 1, $STEP do
    if lock.waiters == 0 or lock.holder then return end
    local head = head_of(lock)
    local waiter = head and waiter_at(lock, head)
    if not waiter and not lock.trimmed then
      -- More places were given up there than one call looks at: the next one goes on from here.
      trim(lock)
      lock.trimmed, lock.line_dirty = true, true
      head = head_of(lock)
      waiter = head and waiter_at(lock, head)
    end
    if not waiter then return end
    -- One that wants more than there is, since the limit was lowered, is never served.
    local in_vain = waiter.mode == 'p' and waiter.permits > lock.limit
    if not in_vain and not admits(lock, waiter.mode, waiter.permits, lock.limit) then return end
    leave_line(lock, waiter.place, waiter.token)
    -- A waiter that was not heard for half of its window is passed over.
    local left = waiter.seen + waiter.window * 1000 - now
    if not in_vain and 2 * left >= waiter.window * 1000 then hand_over(lock, waiter) end
  end
end

-- When the lock could serve somebody at the earliest, µs from now, and the holder whose lease ends
-- first.
local function next_free(lock)
  local hold
  if lock.holder then
    hold = {
      mode = 'x', permits = 1, epoch = lock.epoch, first = lock.first, granted = lock.granted,
      expires = lock.expires, profile = lock.profile,
    }
  elseif lock.holders > 0 then
    hold = nearest_hold(lock)
  end
  return math.max(hold and hold.expires - now or 0, lock.closed - now, 0), hold
end

-- Adds to an answer what stands in the way.
local function add_contention(lock, answer)
  local free_in, hold = next_free(lock)
  local at = #answer
  answer[at + 1] = free_in
  if hold then
    answer[at + 2], answer[at + 3], answer[at + 4] = hold.mode, hold.permits, lock.limit
    answer[at + 5], answer[at + 6] = hold.epoch, hold.first
    answer[at + 7], answer[at + 8] = math.max(now - hold.granted, 0), math.max(hold.expires - now, 0)
    answer[at + 9] = hold.profile
  end
  return answer
end

-- Tells a new first in line when the lock can come free, if it would sleep past that moment.
-- before: who was first, or nil to tell whoever is; asking: a token that needs no telling.
local function tell_first(lock, before, asking)
  local head = head_of(lock)
  if not head or head == before then return end
  local waiter = waiter_at(lock, head)
  if not waiter or waiter.token == asking then return end
  local free_in = next_free(lock)
  -- Waiters go by their own clocks: one that was heard after the present, by a clock that was set back, is not heard later.
  if now + free_in < math.min(waiter.seen, now) + math.floor(waiter.window * 1000 / 3) then
    say(lock, waiter.channel, format('first %s %.0f', waiter.ticket, free_in))
  end
end

-- Closes the lock until so many µs from now, if it is not closed for longer.
local function close(lock, length)
  if length > 0 and now + length > lock.closed then
    lock.closed, lock.dirty = now + length, true
    keep_until(lock, lock.closed)
  end
end

local function reopen(lock)
  if lock.closed > 0 then lock.closed, lock.dirty = 0, true end
end
