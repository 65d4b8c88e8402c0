-- Those who share the lock: readers, holders of permits, or holders with one bond. They are numbered without gaps.
-- What is taken of a bond is its number, however many have it.

-- Whether a token waits or shares, and its record; nothing if another program removed a part of it.
function what(its)
  local record = its and get(its)
  local kind = record and byte(record)
  if kind == $WAITS and #record > $WAITER_SIZE then
    local _, place = unpack('$WAITER', record)
    if waiters > 0 and place >= head and get(pack('$PLACE', place)) == its then return kind, record end
  elseif kind == $SHARES and #record > $SHARER_SIZE and holders > 0 then
    local _, number = unpack('$SHARER', record)
    if get(pack('$SLOT', '@', number)) == its then return kind, record end
    rest()
    return found_again(its, record, number)
  end
end

-- Whether there is room for one more holder; of: how many permits there are.
function admits(mode, permits, of)
  if ends > 0 then return false end
  if mode == 'p' then return taken + permits <= of end
  return holders == 0 or mode == 's' and taken < $BOND or mode == 'j' and taken == permits
end

-- Issues the next fences, and returns the first.
function issue(block)
  local first = max(following, least)
  following, last_epoch, holder, asked, changed = first + block, epoch, '$NOBODY', 0, true
  return first
end

-- Writes what a token has of the lock.
function put_hold(its, number, its_end, first, its_epoch, block, mode, permits, text)
  put(its, pack('$SHARER', 's', number, its_end, first, its_epoch, block, mode, permits) .. text)
  changed, latest, least_end = true, max(latest, its_end), min(least_end, its_end)
  if its_end < first_end then
    first_end, nearest = its_end, number
  elseif number == nearest or its_end == first_end then
    nearest = 0
  end
end

function add_hold(its, its_end, first, its_epoch, block, mode, permits, text)
  holders, taken = holders + 1, mode == 'j' and permits or taken + permits
  put(pack('$SLOT', '@', holders), its)
  put_hold(its, holders, its_end, first, its_epoch, block, mode, permits, text)
end

-- The token and the record of the holder with this number.
function hold_at(number)
  local slot = pack('$SLOT', '@', number)
  local its = get(slot)
  local kind, record = what(its)
  if kind == $SHARES then return its, record end
  rest()
  return lost_hold(number, slot)
end

-- Takes a holder away; the last one gets its number.
function drop_hold(its, record)
  local _, number, _, _, _, _, mode, permits = unpack('$SHARER', record)
  local last = holders
  if number < last then
    local moved, its_record = hold_at(last)
    put(pack('$SLOT', '@', number), moved)
    put(moved, pack('<c1d', 's', number) .. sub(its_record, 10))
  end
  put(pack('$SLOT', '@', last), false)
  put(its, false)
  holders, changed = last - 1, true
  if mode ~= 'j' then taken = taken - permits end
  if nearest == number then nearest = 0 elseif nearest == last then nearest = number end
  cursor = min(cursor, holders)
  if holders == 0 then taken, first_end, nearest, cursor, least_end = 0, $FAR, 0, 0, $FAR end
end

-- Remembers that a token released its lease, so that it is told so when it asks again.
function remember(its, first, its_epoch, block)
  if its_epoch == last_epoch and first + block == following then
    holder = its
  else
    put('ended', sub(its .. (get('ended') or ''), 1, 16 * $REMEMBERED))
  end
end
