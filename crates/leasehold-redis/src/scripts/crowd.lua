-- Finds what a token has of the lock. Sharers are readers, holders of permits, or holders with one bond. They are
-- numbered without gaps. For a bond, `taken` is its number, whatever the count of its holders.
--
-- Lua makes functions again in each call, and looks up each outer local name that they use. So a script makes them for
-- the first lock that needs them, and they name struct, string and math in full.
--
-- in: the lock at hand
if not what then
  -- Whether a token waits or shares, and its record; nil if another program removed a part of it.
  function what(its)
    local record = its and get(its)
    local kind = record and string.byte(record)
    if kind == $WAITS and #record > $WAITER_SIZE then
      local _, place = struct.unpack('$WAITER', record)
      if waiters > 0 and place >= head and get(struct.pack('$PLACE', place)) == its then return kind, record end
    elseif kind == $SHARES and #record > $SHARER_SIZE and holders > 0 then
      local _, number = struct.unpack('$SHARER', record)
      if get(struct.pack('$SLOT', '@', number)) == its then return kind, record end
      return found_again(its, record, number)
    end
  end

  -- The record of a sharer whose number another program removed. The sharer may since have another number and record.
  function found_again(its, record, number)
    for n = 1, math.min(holders, $STEP) do
      local slot = struct.pack('$SLOT', '@', n)
      local other = get(slot)
      local _, of = 0, number
      if other then _, of = struct.unpack('<dd', other) end
      if of == number then
        put(slot, its)
        if other then put(other, false) end
        record = struct.pack('<c1d', 's', n) .. string.sub(record, 10)
        put(its, record)
        return $SHARES, record
      end
    end
  end

  -- Writes the record of a sharer.
  function put_hold(its, number, its_end, first, its_epoch, block, mode, permits, text)
    put(its, struct.pack('$SHARER', 's', number, its_end, first, its_epoch, block, mode, permits) .. text)
    changed, latest, least_end = true, math.max(latest, its_end), math.min(least_end, its_end)
    if its_end < first_end then
      first_end, nearest = its_end, number
    elseif number == nearest or its_end == first_end then
      nearest = 0
    end
  end
end
