-- What the short ways for a lock that somebody waits for take, and nothing else: whatever is not as
-- these functions say goes the general way. They read records by the positions in docs/wire.md.
--
-- in: now.lua

-- When an exclusive lease ends that runs, whose holder nobody asks to let go, and whose lock is not
-- closed; nil for any other record.
local function usual_end(stored)
  if sub(stored, 1, 16) ~= 'leasehold/1 held' or sub(stored, 94, 109) ~= '0000000000000000' then
    return
  end
  local ends = sub(stored, 18, 33) + sub(stored, 144, 156) * 1000
  if ends > now then return ends end
end

-- Takes apart a line in which nobody is or was preferred, no place can have run out, and all are in
-- one range.
--
-- Returns LEAST, what stands before OTHERS, OTHERS, and the range's head, tail and number, as they
-- are written; or nil.
local function usual_line(line)
  local start, least_end, other, waiters, head, tail, number =
    match(line, '^(%d+ (%d+) %d+ 0 )(%d+) (%d+) (%d+)%-(%d+)/(%d+)$')
  if waiters and waiters == number and sub(line, 1, 16) > us then
    return least_end, start, other, head, tail, number
  end
end
