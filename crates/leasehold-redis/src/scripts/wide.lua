-- What it takes to see to a lock that others share or wait for.
--
-- One function is around all of it: Lua looks up what a function shares with its surroundings each time it makes it,
-- and finds it at once in a function's own. What few locks need is made when one does.
--
-- in: the lock at hand
if not settle then
  local function make_ready()
    local try, byte, sub, max, min, floor = redis.pcall, string.byte, string.sub, math.max, math.min, math.floor
    local pack, unpack = struct.pack, struct.unpack
    local found_again, lost_hold, sweep_holds, sweep_line, serve, tell_head
    -- include: crowd

    -- Drops what is over, and hands what is free to the line.
    local swept
    function settle()
      if closed > 0 and closed <= now then closed, changed = 0, true end
      if swept ~= fields then
        swept = fields
        if holders > 0 and first_end <= now then
          rest()
          sweep_holds()
        end
        if waiters > 0 and soonest <= now then
          rest()
          sweep_line()
        end
      end
      if waiters > 0 then
        rest()
        serve()
      end
    end

    -- Notifies a new head of the queue. before: the head until now, or false to notify any; asking: a token that needs no
    -- notification
    function tell_first(before, asking)
      if waiters > 0 and head ~= before then tell_head(asking) end
    end

    local made
    function rest()
      if made then return end
      made = true
      -- include: lost
      -- include: line
    end
  end
  make_ready()
end
