-- Handles sharers when a lease has expired, the nearest end is needed, or another program removed a field.

-- The record of a sharer whose number another program removed: it may have moved since, and been written again.
function found_again(its, record, number)
  for n = 1, min(holders, $STEP) do
    local slot = pack('$SLOT', '@', n)
    local other = get(slot)
    local _, of = 0, number
    if other then _, of = unpack('<dd', other) end
    if of == number then
      put(slot, its)
      if other then put(other, false) end
      record = pack('<c1d', 's', n) .. sub(record, 10)
      put(its, record)
      return $SHARES, record
    end
  end
end

-- What a holder had whose record is gone.
local function permits_of_lost()
  if taken >= $BOND then return 'j', taken end
  if limit == 0 then return 's', 1 end
  local permits = holders > $STEP and 1 or taken
  for number = 1, holders > $STEP and 0 or holders do
    local kind, record = what(get(pack('$SLOT', '@', number)))
    if kind == $SHARES then
      local _, _, _, _, _, _, _, its_permits = unpack('$SHARER', record)
      permits = permits - its_permits
    end
  end
  return 'p', max(permits, 1)
end

-- A holder that has lost a field to another program. It holds until every stored lease has ended: the end of its own is
-- unknown, and its holder uses the lock.
function lost_hold(number, slot)
  local mode, permits = permits_of_lost()
  local its_end = max(kept - retention + offset, first_end < $FAR and first_end or 0)
  local its = pack('<dd', now, number)
  put(slot, its)
  put_hold(its, number, its_end, $ORIGIN, 0, 1, mode, permits, stamp .. '1 1  ')
  return its, get(its)
end

-- The record of the holder whose lease ends first; of more than $STEP, of one that ends soon.
function nearest_hold()
  local kind, record = what(nearest > 0 and get(pack('$SLOT', '@', nearest)))
  if kind == $SHARES then return record end
  local to, best, best_end, best_first, found = min(holders, $STEP), nil, nil, nil, nil
  for number = 1, to do
    local _, its_record = hold_at(number)
    local _, _, its_end, first = unpack('$SHARER', its_record)
    if not best or its_end < best_end or its_end == best_end and first < best_first then
      best, best_end, best_first, found = its_record, its_end, first, number
    end
  end
  if to == holders then nearest, first_end = found, best_end end
  return best
end

-- Drops the holders whose time is over: all of up to $STEP, of more so many from where the last call got to. From the last
-- down, so that none is missed when another takes its number.
function sweep_holds()
  if cursor == 0 then cursor, least_end = holders, $FAR end
  local from = cursor
  local to = max(from - $STEP, 0)
  for number = from, to + 1, -1 do
    local its, record = hold_at(number)
    local _, _, its_end = unpack('$SHARER', record)
    if its_end <= now then drop_hold(its, record) else least_end = min(least_end, its_end) end
  end
  changed = true
  if holders > 0 then
    cursor = to
    if to == 0 then first_end, nearest = least_end, 0 end
  end
end
