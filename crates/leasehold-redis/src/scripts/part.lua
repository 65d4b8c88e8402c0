-- Finds a sharer by its number or its end, and removes one. in: the lock at hand; crowd.lua
if not drop_hold then
  -- Removes a holder; the last one gets its number.
  function drop_hold(its, record)
    local _, number, _, _, _, _, mode, permits = struct.unpack('$SHARER', record)
    local last = holders
    if number < last then
      local moved, its_record = hold_at(last)
      put(struct.pack('$SLOT', '@', number), moved)
      put(moved, struct.pack('<c1d', 's', number) .. string.sub(its_record, 10))
    end
    put(struct.pack('$SLOT', '@', last), false)
    put(its, false)
    holders, changed = last - 1, true
    if mode ~= 'j' then taken = taken - permits end
    if nearest == number then nearest = 0 elseif nearest == last then nearest = number end
    cursor = math.min(cursor, holders)
    if holders == 0 then taken, first_end, nearest, cursor, least_end = 0, $FAR, 0, 0, $FAR end
  end

  -- The token and the record of the holder with this number.
  function hold_at(number)
    local slot = struct.pack('$SLOT', '@', number)
    local its = get(slot)
    local kind, record = what(its)
    if kind == $SHARES then return its, record end
    return lost_hold(number, slot)
  end

  -- Replaces a holder whose field another program removed. Its end is unknown and its user goes on, so the replacement
  -- holds until every stored lease has ended.
  function lost_hold(number, slot)
    local mode, permits = 's', 1
    if taken >= $BOND then
      mode, permits = 'j', taken
    elseif limit > 0 then
      -- The permits that the other holders don't have; with many holders, 1.
      local others = 0
      for n = 1, holders > $STEP and 0 or holders do
        local kind, record = what(get(struct.pack('$SLOT', '@', n)))
        if kind == $SHARES then
          local _, _, _, _, _, _, _, its_permits = struct.unpack('$SHARER', record)
          others = others + its_permits
        end
      end
      mode, permits = 'p', holders > $STEP and 1 or math.max(taken - others, 1)
    end
    local its_end = math.max(kept - retention + offset, first_end < $FAR and first_end or 0)
    local its = struct.pack('<dd', now, number)
    put(slot, its)
    put_hold(its, number, its_end, $ORIGIN, 0, 1, mode, permits, stamp .. '1 1  ')
    return its, get(its)
  end

  -- The record of the holder whose lease ends first; of more than $STEP holders, one whose lease ends soon.
  function nearest_hold()
    local kind, record = what(nearest > 0 and get(struct.pack('$SLOT', '@', nearest)))
    if kind == $SHARES then return record end
    local to, best, best_end, best_first, found = math.min(holders, $STEP), nil, nil, nil, nil
    for number = 1, to do
      local _, its_record = hold_at(number)
      local _, _, its_end, first = struct.unpack('$SHARER', its_record)
      if not best or its_end < best_end or its_end == best_end and first < best_first then
        best, best_end, best_first, found = its_record, its_end, first, number
      end
    end
    if to == holders then nearest, first_end = found, best_end end
    return best
  end
end
