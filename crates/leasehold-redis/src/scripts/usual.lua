-- Looks whether a lock for which somebody waits is as the short ways take it: whatever is not, goes the
-- general way. They read states by the positions in docs/wire.md. No function: a short way is to make none.
--
-- in: now.lua; state and line, as they were read
--
-- out: lease_ends  when an exclusive lease ends that runs, whose holder nobody asks to let go, and whose
--                  lock is not closed; nil for any other state, and for one that doesn't fit the line
--      start       of a line in which nobody is or was preferred, no place can have run out, and all are
--                  in one range, whose numbers all have sixteen digits: what stands before OTHERS; nil for any
--                  other line
--      least_end, other, waiters, head, tail
--                  LEAST, OTHERS, how many wait, and the range's head and tail, as they are written
local lease_ends, start, least_end, other, waiters, head, tail
if type(state) == 'string' and (type(line) == 'string' and #state == 90 and sub(state, 86) == ' line'
  or not line and #state == 85) then
  local ends = sub(state, 70, 85)
  if ends > us then lease_ends = ends + 0 end
  if line and lease_ends and sub(line, 1, 16) > us then
    local more = string.find(line, ' ', 56, true)
    if more and sub(line, 34, 38) == ' 0 0 ' and sub(line, more + 17, more + 17) == '-' then
      waiters = sub(line, 56, more - 1)
      if sub(line, more + 34) == '/' .. waiters then
        start, least_end, other = sub(line, 1, 38), sub(line, 18, 33), sub(line, 39, 54)
        head, tail = sub(line, more + 1, more + 16), sub(line, more + 18, more + 33)
      end
    end
  end
end
