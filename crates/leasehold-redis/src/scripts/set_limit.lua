-- Changes the limit of a semaphore in use. Waiters that want more permits than there are lose their positions: those at
-- the first $STEP places at once, those behind when they become the head.
--
-- KEYS[1]  the lock
-- ARGV[1]  see begin.lua; $LIMIT: the new limit
--
-- Returns an array with one answer, which is one of
--   set limit        the limit before
--   not-in-use
--   wrong-kind 0     it is a lock
-- or foreign, damaged, version or failed, as acquire returns it.
--
-- Atomic. Works at the server's memory limit.
-- include: begin
-- include: clock
-- include: in_time
local frees, its_limit = true, unpack('$LIMIT', request, at)
key = keys[1]
-- include: read
if not answer then
  -- include: wide
  local before = waiters > 0 and head
  settle()
  if ends == 0 and holders + waiters + closed == 0 then
    answer = {'not-in-use'}
  elseif limit == 0 then
    answer = {'wrong-kind', 0}
  else
    answer = {'set', floor(limit)}
    limit, changed = its_limit, true
    local left, at, from, to, in_vain = $STEP, 1, head, tail, {}
    while from and waiters > 0 do
      local last = min(to, from + left - 1)
      for n = 0, last - from do
        local its = get(pack('$PLACE', from + n))
        local kind, record = what(its)
        if kind == $WAITS then
          local _, _, _, _, _, _, _, _, mode, permits = unpack('$WAITER', record)
          if mode == 'p' and permits > limit then in_vain[#in_vain + 1], in_vain[#in_vain + 2] = from + n, its end
        end
      end
      left, from = left - (last - from + 1), nil
      if left > 0 and at < #ranges then from, to, at = unpack('$RANGE', ranges, at) end
    end
    for n = 1, #in_vain, 2 do leave_line(in_vain[n], in_vain[n + 1]) end
  end
  settle()
  tell_first(before, nil)
  -- include: commit
  -- include: tell
end
-- include: only
