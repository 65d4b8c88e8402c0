-- Looks whether a lock for which somebody waits is as the short ways take it: whatever is not, goes the
-- general way. They read states by the positions in docs/wire.md. No function: a short way is to make none.
--
-- in: now.lua; state and line, as they were read
--
-- out: lease_ends  when an exclusive lease ends that runs, whose holder nobody asks to let go, and whose
--                  lock is not closed; nil for any other state, and for one that doesn't fit the line
--      start       of a line in which nobody is or was preferred, no place can have run out, and all are
--                  in one range: what stands before OTHERS; nil for any other line
--      least_end, other, waiters, head, tail
--                  LEAST, OTHERS, how many wait, and the range's head and tail, as they are written
local lease_ends, start, least_end, other, waiters, head, tail
if type(state) == 'string' and (type(line) == 'string' and #state == 90 and sub(state, 86) == ' line'
  or not line and #state == 85) then
  local ends = sub(state, 70, 85)
  if ends > us then lease_ends = ends + 0 end
  if line and lease_ends and sub(line, 1, 16) > us then
    start, least_end, other, waiters, head, tail =
      match(line, '^(%d+ (%d+) %d+ 0 )(%d+) (%d+) (%d+)%-(%d+)/%4$')
  end
end
