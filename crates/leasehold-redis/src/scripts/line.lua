-- Those who wait, by their places. Places are given without gaps, so the line is kept as ranges:
-- one in the usual case, more when waiters come back whom the store had forgotten.
--
-- in: lock.lua

local function field_of(place) return '#' .. digits(place) end

-- Who waits at this place, or nil.
local function waiter_at(lock, place)
  local text = get(lock, field_of(place))
  if not text then return end
  local waiter = {place = place, text = text}
  local seen, window, permits, count
  seen, window, waiter.beat, waiter.arrived, waiter.token, count, waiter.mode, permits, waiter.ticket,
    waiter.channel, waiter.label =
    match(text, '^(%d+) (%d+) (%d+) %d+ (%d+) (%S+) (%d+) (%l) (%d+) (%d+) (%S+) %d+ (.*)$')
  waiter.seen, waiter.window, waiter.permits, waiter.count = seen + 0, window + 0, permits + 0,
    count + 0
  return waiter
end

local function forget_line(lock)
  lock.next_preferred, lock.next_other, lock.walk = 0, 0, 0
  lock.soonest, lock.soonest_seen = $FAR, $FAR
end

-- Visits up to $STEP places from one on; visit gets the place and what stands there, if anything.
--
-- Returns the place to go on from, or 0 when there is none.
local function walk(lock, from, visit)
  local places, names = {}, {}
  local onward = 0
  for i = 1, #lock.ranges do
    local range = lock.ranges[i]
    local place = math.max(range.head, from)
    while place <= range.tail and #places < $STEP do
      places[#places + 1], names[#names + 1] = place, field_of(place)
      place = place + 1
    end
    if place <= range.tail then
      onward = place
      break
    end
  end
  if #names == 0 then return 0 end
  local values = redis.call('HMGET', lock.key, unpack(names))
  for i = 1, #names do
    if lock.fields[names[i]] == nil then lock.fields[names[i]] = known(values[i]) end
  end
  for i = 1, #names do
    if lock.fields[names[i]] then visit(places[i], lock.fields[names[i]]) end
  end
  return onward
end

-- Lets the line begin at a place, or behind it; all before is given up. A range in which nobody
-- waits, though it says so, has places that somebody else removed.
local function begin_at(lock, place)
  while lock.ranges[1] and lock.ranges[1].tail < place do
    lock.waiters, lock.dirty = lock.waiters - lock.ranges[1].number, true
    table.remove(lock.ranges, 1)
  end
  local range = lock.ranges[1]
  if not range then
    lock.waiters = 0
    forget_line(lock)
  elseif range.head < place then
    range.head = place
  end
end

-- Moves the head of the line up to the first who waits, over places that were given up: most often
-- it is one of the next few.
local function trim(lock)
  for _ = 1, $NEAR do
    local range = lock.ranges[1]
    if not range or get(lock, field_of(range.head)) then return end
    begin_at(lock, range.head + 1)
  end
  for _ = 1, $FURTHER do
    local first
    local onward = walk(lock, 0, function(place) first = first or place end)
    begin_at(lock, first or onward > 0 and onward or $FAR)
    if first or onward == 0 then return end
  end
end

-- Takes a waiter out of the line.
local function leave_line(lock, place, token)
  put(lock, field_of(place), false)
  put(lock, token, false)
  lock.waiters, lock.line_dirty, lock.dirty = lock.waiters - 1, true, true
  for i = 1, #lock.ranges do
    local range = lock.ranges[i]
    if place >= range.head and place <= range.tail then
      range.number = range.number - 1
      if range.number == 0 then table.remove(lock.ranges, i) end
      if i == 1 and (range.number == 0 or place == range.head) then trim(lock) end
      break
    end
  end
  if lock.waiters == 0 then forget_line(lock) end
end

-- Makes room for a place in the ranges; more than $RANGES of them only for places that are given.
--
-- Returns whether there is room.
local function make_place(lock, place, given)
  local ranges, at = lock.ranges, 0
  while ranges[at + 1] and ranges[at + 1].head <= place do at = at + 1 end
  local before, after = ranges[at], ranges[at + 1]
  if before and place <= before.tail + $SLACK then
    before.number = before.number + 1
    if place > before.tail then before.tail = place end
  elseif after and place >= after.head - $SLACK then
    after.number, after.head = after.number + 1, place
  elseif given or #ranges < $RANGES then
    table.insert(ranges, at + 1, {head = place, tail = place, number = 1})
  else
    return false
  end
  return true
end

-- Whether a place that a waiter brings can have been given, and is nobody else's.
local function may_have_given(lock, place)
  local following, present = lock.next_preferred, now
  if place >= $BEHIND then following, present = lock.next_other, now + $BEHIND end
  return place <= math.max(following - 1, present) and not get(lock, field_of(place))
end

-- Takes in that a place is kept until then.
local function keep_place(lock, ends)
  keep_until(lock, ends)
  if ends < lock.soonest_seen then lock.soonest_seen, lock.line_dirty = ends, true end
  if ends < lock.soonest then lock.soonest, lock.line_dirty = ends, true end
end

-- Forgets those whose place has run out: in a line of up to $STEP places all of them, in a longer
-- one so many from where the last call got to.
local function sweep_line(lock)
  if lock.walk == 0 then lock.soonest_seen = $FAR end
  lock.line_dirty = true
  local onward = walk(lock, lock.walk, function(place, text)
    local seen, window, token =
      match(text, '^(%d+) (%d+) %d+ %d+ %d+ (%S+)')
    local ends = seen + window * 1000
    if ends <= now then
      leave_line(lock, place, token)
    elseif ends < lock.soonest_seen then
      lock.soonest_seen = ends
    end
  end)
  if lock.waiters > 0 then
    lock.walk = onward
    if onward == 0 then lock.soonest = lock.soonest_seen end
  end
end

-- The place of the token in line, or nil.
local function place_of(lock, token)
  local name = get(lock, token)
  if not name or string.byte(name) ~= 35 then return end
  local place = sub(name, 2) + 0
  for i = 1, #lock.ranges do
    local range = lock.ranges[i]
    if place >= range.head and place <= range.tail and get(lock, name) then return place end
  end
  -- Somebody else removed the place, or the line.
  put(lock, token, false)
  put(lock, name, false)
end

-- How many are before a place, at most; exact for the first, and where nobody gave up.
local function position_of(lock, place)
  local before = 0
  for i = 1, #lock.ranges do
    local range = lock.ranges[i]
    if place <= range.tail then
      return before + math.min(place - range.head, range.number - 1)
    end
    before = before + range.number
  end
  return before
end

local function head_of(lock) return lock.ranges[1] and lock.ranges[1].head end
