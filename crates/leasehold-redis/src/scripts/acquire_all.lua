-- Acquires several locks, or none: reads all, then checks whether each can be acquired, and then acquires each.
--
-- KEYS[i]  the i-th lock
-- ARGV[1]  as for acquire, without positions in the queue
--
-- Returns an array with one answer, which is one of
--   granted {answer …}   all are held: for each, the answer of acquire
--   blocked i answer     the i-th, counted from 0, can't be acquired: acquire would answer so; none was acquired
--
-- Atomic. Keys of several slots must not be given to a cluster.
-- include: begin
-- include: clock
-- include: in_time
-- include: wish
local frees, blocked, answers = false, nil, {}
for step = 1, 3 do
  for i = 1, blocked and 0 or #keys do
    -- include: wanted
    -- include: read
    local has, unread = false, answer
    if not answer and step > 1 then
      local before, was_closed, word, place = waiters > 0 and head, nil, nil, nil
      wide = true
      -- include: wide
      settle()
      local own, record = what(token)
      was_closed = closed
      -- include: look
      has = own == $SHARES or ends > 0 and holder == token
      if answer then
        -- Nothing is taken.
      elseif step == 2 then
        if not has and (own or not free) then word = 'busy' end
      elseif has then
        -- include: prolong
      else
        -- include: grant
      end
      tell_first(closed <= was_closed and before, nil)
      -- include: seen
      -- include: commit
      -- include: tell
      -- include: shown
    end
    local is_had = type(answer) == 'number' or type(answer) == 'table' and answer[1] == 'already'
    if answer and not is_had then
      -- After a write, this must be an error: the answer would claim that nothing was written.
      if written and (unread or answer[1] == 'failed') then error(answer[2] or answer[1], 0) end
      blocked = {'blocked', i - 1, answer}
      break
    end
    answers[i] = answer
  end
end
answer = blocked or {'granted', answers}
-- include: only
