-- Finds the sharer whose lease ends first, and drops those whose leases have expired.

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
local function sweep_holds()
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
