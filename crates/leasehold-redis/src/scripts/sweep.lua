-- Drops the holders whose leases have expired: all of up to $STEP holders. Of more, each call goes on from where the
-- last one ended. It goes from the last number down, so that none is missed when another gets its number.
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
