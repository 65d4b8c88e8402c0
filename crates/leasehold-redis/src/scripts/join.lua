-- Adds a sharer. in: the lock at hand; crowd.lua
if not admits then
  -- Whether one more holder fits; of: the number of permits.
  function admits(mode, permits, of)
    if ends > 0 then return false end
    if mode == 'p' then return taken + permits <= of end
    return holders == 0 or mode == 's' and taken < $BOND or mode == 'j' and taken == permits
  end

  function add_hold(its, its_end, first, its_epoch, block, mode, permits, text)
    holders, taken = holders + 1, mode == 'j' and permits or taken + permits
    put(struct.pack('$SLOT', '@', holders), its)
    put_hold(its, holders, its_end, first, its_epoch, block, mode, permits, text)
  end
end
