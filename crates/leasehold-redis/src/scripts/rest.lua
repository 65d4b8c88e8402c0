-- Makes the functions for a queue and for expired leases.
--
-- One function surrounds all of them: when Lua makes a function, it looks up each variable that is shared with the
-- surroundings, and finds it at once if the surrounding function owns it.
--
-- in: the lock at hand; crowd.lua, join.lua, part.lua
if not settle then
  local function make_ready()
    local byte, sub, max, min, floor = string.byte, string.sub, math.max, math.min, math.floor
    local pack, unpack = struct.pack, struct.unpack
    -- include: sweep
    -- include: line

    -- Drops what has expired, and grants what is free to the queue.
    local swept
    function settle()
      if closed > 0 and closed <= now then closed, changed = 0, true end
      if swept ~= fields then
        swept = fields
        if holders > 0 and first_end <= now then sweep_holds() end
        if waiters > 0 and soonest <= now then sweep_line() end
      end
      if waiters > 0 then serve() end
    end

    -- Notifies a new head of the queue. before: the head until now, or false to notify any; asking: a token that needs
    -- no notification
    function tell_first(before, asking)
      if waiters > 0 and head ~= before then tell_head(asking) end
    end
  end
  make_ready()
end
