-- One lock as a table, read in one go and written in one go; docs/wire.md has the formats.
--
-- Nothing is written between open and commit: what changes is staged. A script that fails while it
-- decides has done nothing, and one HSET makes the whole change: a field that is empty is none. Times
-- are in µs, lengths (ttl, window) in ms, unless said otherwise.
--
-- in: now.lua; frees: whether to work at the server's memory limit
-- include: send
local messages = {}

local function digits(number) return format('%.0f', number) end

-- Stages a message, which is sent when what it tells is written.
local function say(lock, channel, text) lock.said[#lock.said + 1] = {channel, text} end

-- What a field has that was read, or false: scripts that were stopped leave empty fields.
local function known(value) return value ~= '' and value end

-- The value of a field, staged or stored; false when there is none.
local function get(lock, name)
  local value = lock.fields[name]
  if value == nil then
    value = known(redis.call('HMGET', lock.key, name)[1])
    lock.fields[name] = value
  end
  return value
end

-- Stages a field; false removes it.
local function put(lock, name, value)
  if lock.staged[name] == nil then lock.names[#lock.names + 1] = name end
  lock.fields[name], lock.staged[name] = value, true
end

-- Takes in that the key has to say something until then: the end of a lease, a place or a
-- cool-down, or the time of the last fence, below which a new record would issue fences.
local function keep_until(lock, moment)
  if moment > lock.needed then lock.needed = moment end
end

-- Reads a lock, and of its other fields those of a token and of a place.
--
-- Returns the lock, or nil and the answer that says what stands at the key instead: what has none of a lock's
-- fields is foreign, and what has one of them and can't be read is a lock that somebody else damaged.
local function open(key, token, place)
  local got = redis.pcall('HMGET', key, 'state', 'lock', 'line', token,
    place and '#' .. place or token)
  if got.err then
    if string.find(got.err, 'WRONGTYPE') then return nil, {'foreign'} end
    return nil, {'failed', got.err}
  end
  local state, about, line = known(got[1]), got[2], known(got[3])
  local lock = {
    key = key, about = about, in_line = line, needed = 0,
    fields = {}, staged = {}, names = {}, said = {},
    -- The state, and what is kept about the last grant.
    holder = nil, expires = 0, granted = 0, profile = nil, released = nil,
    epoch = 0, first = 0, count = 0, kept = 0, closed = 0,
    -- Those who share it.
    limit = 0, holders = 0, taken = 0, ends = 0, nearest = 0, cursor = 0, soonest_end = $FAR,
    -- The line.
    waiters = 0, ranges = {}, soonest = $FAR, walk = 0, soonest_seen = $FAR,
    next_preferred = 0, next_other = 0, window = 0,
  }
  lock.fields[token] = known(got[4])
  if place then lock.fields['#' .. place] = known(got[5]) end
  local lives = redis.call('PTTL', key)
  if not about then
    if lives == -2 then return lock end
    return nil, {(got[1] or got[3]) and 'damaged' or 'foreign'}
  end
  lock.endless = lives == -1
  local count, granted, profile = match(about, '^leasehold/1 (%d+) (%d+) ?(.*)$')
  local kept, who, following, its_epoch, rest =
    match(state or '', '^(%d+) (%S+) (%d+) (%d%d%d%d)(.*)$')
  if not count or not kept then
    local version = match(about, '^leasehold/(%d+) ')
    if version and version ~= '1' then return nil, {'version', version} end
    return nil, {'damaged'}
  end
  local expires, shape = match(rest, '^ (%d+)(.*)$')
  -- The end of a lease that was cut off would be one that is over.
  if expires and #expires == 16 then
    lock.holder, lock.profile, lock.expires, lock.granted = who, profile, expires + 0, granted + 0
    local soonest, head, other, window, gone = match(shape, '^ (%d+) (%d+) (%d+) (%d+) (%d+)$')
    if soonest then
      lock.plain, line = true, nil
      local number = other - head - gone
      if number > 0 then
        lock.soonest, lock.window, lock.next_other, lock.waiters = soonest + 0, window + 0, other + 0, number
        lock.ranges[1] = {head = head + 0, tail = other - 1, number = number}
      end
    else
      local closed = match(shape, '^ more (%d+)$')
      if closed then
        lock.closed = closed + 0
      elseif shape ~= '' and shape ~= ' line' then
        return nil, {'damaged'}
      end
    end
  elseif rest ~= '' then
    local closed, limit, holders, taken, ends, nearest, cursor, soonest_end
    closed, limit, holders, taken, ends, nearest, cursor, soonest_end =
      match(rest, '^ many (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
    if not limit then return nil, {'damaged'} end
    lock.closed, lock.limit, lock.holders = closed + 0, limit + 0, holders + 0
    lock.taken, lock.ends, lock.nearest = taken + 0, ends + 0, nearest + 0
    lock.cursor, lock.soonest_end = cursor + 0, soonest_end + 0
  end
  if not lock.holder and string.byte(who) ~= 45 then lock.released = who end
  lock.first, lock.count, lock.epoch = following - count, count + 0, its_epoch + 0
  lock.kept = kept + 0
  if line then
    local soonest, seen, walk, preferred, other, window, waiters, ranges =
      match(line, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)(.*)$')
    lock.soonest, lock.soonest_seen, lock.walk, lock.window = soonest + 0, seen + 0, walk + 0, window + 0
    lock.next_preferred, lock.next_other, lock.waiters = preferred + 0, other + 0, waiters + 0
    for head, tail, number in string.gmatch(ranges, ' (%d+)%-(%d+)/(%d+)') do
      lock.ranges[#lock.ranges + 1] = {head = head + 0, tail = tail + 0, number = number + 0}
    end
  end
  return lock
end

-- Whether a holder is alone, and is to know nothing but that the lock is waited for at most.
local function is_alone(lock)
  return lock.holder and lock.closed == 0 and not string.find(lock.profile, '^%d+ [^ ]* [^ ]* ')
end

-- Whether the state has all that there is to know of the line: one range to which the next waiter comes, in which
-- all have their places kept for as long, nobody is preferred, and no sweep is under way.
local function is_plain(lock)
  local range = lock.ranges[1]
  return lock.waiters > 0 and #lock.ranges == 1 and lock.window > 0 and lock.walk == 0
    and lock.next_preferred == 0 and lock.next_other == range.tail + 1 and is_alone(lock)
end

local function state_of(lock)
  local rest = ''
  if lock.holder then
    rest = format(' %016.0f', lock.expires)
    -- A lock that is closed, or whose holder is asked to let go, has a word that no short way takes.
    if not is_alone(lock) then
      rest = rest .. format(' more %016.0f', lock.closed)
    elseif is_plain(lock) then
      local range = lock.ranges[1]
      rest = rest .. format(' %016.0f %016.0f %016.0f %013.0f %.0f', lock.soonest, range.head, lock.next_other,
        lock.window, math.max(range.tail - range.head + 1 - lock.waiters, 0))
    elseif lock.waiters > 0 then
      rest = rest .. ' line'
    end
  -- A semaphore stays one when nobody uses it: it may be closed for a while by a late release.
  elseif lock.holders + lock.waiters + lock.closed + lock.limit > 0 then
    rest = format(' many %016.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', lock.closed, lock.limit,
      lock.holders, lock.taken, lock.ends, lock.nearest, lock.cursor, lock.soonest_end)
  end
  return format('%013.0f %s %016.0f %04.0f%s', lock.kept, lock.holder or lock.released or '$NOBODY',
    lock.first + lock.count, lock.epoch, rest)
end

local function about_of(lock)
  if not lock.holder then return format('leasehold/1 %010.0f 0000000000000000', lock.count) end
  return format('leasehold/1 %010.0f %016.0f %s', lock.count, lock.granted, lock.profile)
end

local function line_of(lock)
  local text = format('%016.0f %.0f %.0f %.0f %.0f %.0f %.0f', lock.soonest, lock.soonest_seen, lock.walk,
    lock.next_preferred, lock.next_other, lock.window, lock.waiters)
  for i = 1, #lock.ranges do
    local range = lock.ranges[i]
    text = text .. format(' %.0f-%.0f/%.0f', range.head, range.tail, range.number)
  end
  return text
end

-- Decides how long the key is to live. It is told seldom: then it gets a quarter of the retention
-- more than it needs.
--
-- written: whether something is written anyway.
--
-- Returns whether to tell it that it lives longer, and whether to tell it that it ends earlier.
local function keep(lock, written)
  local ahead = retention + math.floor(retention / 4)
  local needed = math.ceil(math.max(lock.needed, now) / 1000) + retention
  -- Somebody else took the expiry from an endless key.
  local endless = lock.endless and written
  if (lock.needed > 0 or endless) and lock.kept < needed then
    lock.kept = needed - retention + ahead
    return true, false
  end
  -- A long lease that was given back early is not remembered for as long as it would have run.
  if lock.dirty and not lock.holder and lock.holders + lock.waiters + lock.closed == 0 then
    local enough = math.ceil(math.max(lock.first + lock.count, now) / 1000) + ahead
    if lock.kept > enough + retention then
      lock.kept = enough
      return false, true
    end
  end
  return endless, false
end

-- Writes the fields. All that can be refused is tried before the one HSET, which is the whole of the
-- change: a key that lives longer than it needs, or has empty fields, is as good as before.
--
-- A script that removes something begins with an HDEL that removes nothing: it needs no memory, and
-- servers at their memory limit let the others through after it.
--
-- Returns nil, or the answer that says why nothing was written.
local function write(lock, sets, gone, longer, shorter)
  local key, left = lock.key, digits(lock.kept - math.floor(now / 1000))
  local stored = lock.about
  local refused = stored and (frees or #gone > 0) and refusal_of(redis.pcall('HDEL', key, ''))
    or stored and longer and refusal_of(redis.pcall('PEXPIRE', key, left))
    or refusal_of(redis.pcall('HSET', key, unpack(sets)))
  if refused then return refused end
  if not stored then
    refused = refusal_of(redis.pcall('PEXPIRE', key, left))
    if refused then
      local names = {}
      for i = 1, #sets, 2 do names[#names + 1] = sets[i] end
      redis.call('HDEL', key, unpack(names))
      return refused
    end
  elseif shorter then
    redis.pcall('PEXPIRE', key, left)
  end
  if #gone > 0 then redis.pcall('HDEL', key, unpack(gone)) end
end

-- Writes what changed.
--
-- Returns nil, or the answer that says why nothing was written; then nothing is told either.
local function commit(lock)
  local sets, gone = {}, {}
  for i = 1, #lock.names do
    local name = lock.names[i]
    local value = lock.fields[name]
    sets[#sets + 1], sets[#sets + 2] = name, value or ''
    if not value then gone[#gone + 1] = name end
  end
  if lock.dirty or lock.line_dirty then
    local plain = is_plain(lock)
    -- What of the line is in the state changes with it.
    if lock.line_dirty and (plain or lock.plain) then lock.dirty = true end
    if lock.waiters > 0 and not plain then
      if lock.line_dirty or not lock.in_line then sets[#sets + 1], sets[#sets + 2] = 'line', line_of(lock) end
    elseif lock.in_line and (plain or lock.line_dirty) then
      sets[#sets + 1], sets[#sets + 2], gone[#gone + 1] = 'line', '', 'line'
      lock.dirty = true
    end
  end
  local longer, shorter = keep(lock, #sets > 0 or lock.dirty)
  -- Who is next to end is found for an answer, and noted only where something is written anyway.
  if longer or shorter or lock.dirty or lock.found and #sets > 0 then
    local text = about_of(lock)
    sets[#sets + 1], sets[#sets + 2] = 'state', state_of(lock)
    if text ~= lock.about then sets[#sets + 1], sets[#sets + 2] = 'lock', text end
  end
  local refused = #sets > 0 and write(lock, sets, gone, longer, shorter)
  if refused then return refused end
  for i = 1, #lock.said do messages[#messages + 1] = lock.said[i] end
end

-- Sends the messages: all that they tell is written.
--
-- Returns the answer, with what could not be sent.
local function tell(answer)
  for i = 1, #messages do send(messages[i][1], messages[i][2]) end
  return with_unsent(answer)
end
