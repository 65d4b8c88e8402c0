-- Those who share a lock: readers, holders of permits, or holders with one bond, numbered without
-- gaps. What is taken of a bond is its number, however many have it.
--
-- in: lock.lua

-- Reads the holds with these numbers in one go.
local function fetch_holds(lock, from, to)
  local names = {}
  for number = from, to do
    if lock.fields['@' .. number] == nil then names[#names + 1] = '@' .. number end
  end
  if #names == 0 then return end
  local values = redis.call('HMGET', lock.key, unpack(names))
  for i = 1, #names do lock.fields[names[i]] = known(values[i]) end
end

-- What holders have whose field somebody else removed.
local function permits_of_lost(lock)
  if lock.taken >= $BOND then return lock.taken end
  if lock.limit == 0 or lock.holders > $STEP then return 1 end
  local permits = lock.taken
  fetch_holds(lock, 1, lock.holders)
  for number = 1, lock.holders do
    permits = permits - (match(get(lock, '@' .. number) or '', '^%l (%d+)') or 0)
  end
  return math.max(permits, 1)
end

-- The holder with this number. One whose field somebody else removed holds, under the fence 0, until
-- all is over that was stored then: nothing says when its lease ends, and its holder uses the lock. It counts
-- as many fences as the number says that it had, to which its token's field leads wherever it is moved.
local function hold_at(lock, number)
  local name = '@' .. number
  if not get(lock, name) then
    local mode = lock.taken >= $BOND and 'j' or lock.limit > 0 and 'p' or 's'
    put(lock, name, format('%s %.0f %.0f %.0f 0 $ORIGIN %.0f $NOBODY 1  ', mode,
      permits_of_lost(lock), math.max((lock.kept - retention) * 1000, lock.ends), now, number))
    if lock.nearest == number then lock.nearest, lock.dirty = 0, true end
  end
  local hold = {number = number}
  local permits, expires, granted, its_epoch, first, count
  hold.mode, permits, expires, granted, its_epoch, first, count, hold.token, hold.profile =
    match(get(lock, name), '^(%l) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  hold.permits, hold.expires, hold.granted = permits + 0, expires + 0, granted + 0
  hold.epoch, hold.first, hold.count = its_epoch + 0, first + 0, count + 0
  return hold
end

local function put_hold(lock, hold)
  put(lock, '@' .. hold.number, format('%s %.0f %.0f %.0f %.0f %.0f %.0f %s %s', hold.mode,
    hold.permits, hold.expires, hold.granted, hold.epoch, hold.first, hold.count, hold.token,
    hold.profile))
end

-- Takes in that a lease ends at another time than before, or a new one does.
local function will_end(lock, hold)
  lock.dirty = true
  keep_until(lock, hold.expires)
  if hold.expires < lock.soonest_end then lock.soonest_end = hold.expires end
  if hold.expires < lock.ends then
    lock.ends, lock.nearest = hold.expires, hold.number
  elseif hold.number == lock.nearest or hold.expires == lock.ends then
    lock.nearest = 0
  end
end

local function add_hold(lock, hold)
  lock.holders = lock.holders + 1
  lock.taken = hold.mode == 'j' and hold.permits or lock.taken + hold.permits
  hold.number = lock.holders
  if lock.holders == 1 then lock.ends, lock.cursor, lock.soonest_end = $FAR, 0, $FAR end
  put_hold(lock, hold)
  put(lock, hold.token, '@' .. hold.number)
  will_end(lock, hold)
end

-- Takes a hold away; the last one gets its number.
local function drop_hold(lock, hold)
  local number, last = hold.number, lock.holders
  if number < last then
    local moved = hold_at(lock, last)
    put(lock, '@' .. number, get(lock, '@' .. last))
    if moved.token ~= '$NOBODY' then put(lock, moved.token, '@' .. number) end
  end
  put(lock, '@' .. last, false)
  put(lock, hold.token, false)
  lock.holders, lock.dirty = last - 1, true
  if hold.mode ~= 'j' then lock.taken = lock.taken - hold.permits end
  if lock.nearest == number then lock.nearest = 0 elseif lock.nearest == last then
    lock.nearest = number
  end
  if lock.cursor > lock.holders then lock.cursor = lock.holders end
  if lock.holders == 0 then lock.taken, lock.ends, lock.nearest, lock.soonest_end = 0, 0, 0, 0 end
end

local function is_before(hold, other)
  return not other or hold.expires < other.expires
    or hold.expires == other.expires and hold.first < other.first
end

-- Drops the holds whose time is over: all of up to $STEP, of more so many from where the last call
-- got to. From the last down, so that none is missed when another takes its number.
local function sweep_crowd(lock)
  local whole = lock.cursor == 0
  if whole then lock.cursor, lock.soonest_end = lock.holders, $FAR end
  local from = lock.cursor
  local to = math.max(from - $STEP, 0)
  fetch_holds(lock, to + 1, from)
  local soonest
  for number = from, to + 1, -1 do
    local hold = hold_at(lock, number)
    if hold.expires <= now then
      drop_hold(lock, hold)
    else
      if hold.expires < lock.soonest_end then lock.soonest_end = hold.expires end
      if is_before(hold, soonest) then soonest = hold end
    end
  end
  lock.cursor, lock.dirty = to, true
  if to == 0 and lock.holders > 0 then
    lock.ends, lock.nearest = lock.soonest_end, 0
    -- It has another number if it took that of one that is over.
    local name = whole and get(lock, soonest.token)
    if name and string.byte(name) == 64 then lock.nearest = sub(name, 2) + 0 end
  end
end

-- The holder whose lease ends first; of more than $STEP, one that ends soon.
local function nearest_hold(lock)
  if lock.nearest > 0 then return hold_at(lock, lock.nearest) end
  local to, soonest = math.min(lock.holders, $STEP), nil
  fetch_holds(lock, 1, to)
  for number = 1, to do
    local hold = hold_at(lock, number)
    if is_before(hold, soonest) then soonest = hold end
  end
  if to == lock.holders then
    lock.ends, lock.nearest, lock.found = soonest.expires, soonest.number, true
  end
  return soonest
end

-- What the token holds of a shared lock, or nil.
local function hold_of(lock, token)
  local name = lock.holders > 0 and get(lock, token)
  local number = name and string.byte(name) == 64 and sub(name, 2) + 0
  if not number then return end
  local hold = number <= lock.holders and hold_at(lock, number)
  if hold and hold.token == token then return hold end
  -- Somebody else removed it, and it may have been moved since.
  local to, at = math.min(lock.holders, $STEP), 0
  fetch_holds(lock, 1, to)
  while not (hold and hold.token == '$NOBODY' and hold.count == number) do
    if at == to then return end
    at = at + 1
    hold = hold_at(lock, at)
  end
  hold.token = token
  put_hold(lock, hold)
  put(lock, token, '@' .. hold.number)
  return hold
end

-- Remembers that the holder released its lease, so that it is told so when it asks again.
local function remember_release(lock, token, hold)
  lock.dirty = true
  local last = lock.first + lock.count
  if not hold or hold.epoch == lock.epoch and hold.first + hold.count == last then
    lock.released = token
  else
    local before = get(lock, 'ended')
    put(lock, 'ended', sub(token .. (before and ' ' .. before or ''), 1, $REMEMBERED * 33 - 1))
  end
end

local function has_released(lock, token)
  if lock.released == token then return true end
  local ended = get(lock, 'ended')
  return ended and string.find(ended, token, 1, true) ~= nil
end

-- Whether these are the last fences issued, for a lease that ran out and was not released.
local function is_late(lock, its_epoch, last)
  -- A lease that was handed over is alive under another token, with the same fences.
  return not lock.holder and lock.holders == 0 and not lock.released and its_epoch == lock.epoch
    and last == lock.first + lock.count - 1
end

-- Gives a lease another token.
local function hand_to(lock, token, successor)
  local hold = hold_of(lock, token)
  if lock.holder == token then
    lock.holder, lock.dirty = successor, true
  elseif hold then
    hold.token = successor
    put_hold(lock, hold)
    put(lock, token, false)
    put(lock, successor, '@' .. hold.number)
  end
end
