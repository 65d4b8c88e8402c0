-- Ends what a token has: a position in the queue, or a lease.
--
-- KEYS[1]  the lock
-- ARGV[1]  see begin.lua; $LEAVING: token; 1 to end the cooldown that the grant began, else 0
--
-- Returns an array with one answer, which is one of
--   left       it was waiting
--   released   it held the lease
--   not-held   it had nothing
-- or foreign, damaged, version or failed, as acquire returns it.
--
-- Atomic. Works at the server's memory limit.
-- include: begin
-- include: clock
local frees, opens = true, nil
key = keys[1]
token, opens = unpack('$LEAVING', request, at)
-- include: state
-- exit: behind a lease that goes on, in a queue whose positions all last, a waiter leaves that is not the head.
if state and #state == $LINE_SIZE then
  shape, kept, holder, ends, given, following, last_epoch, waiters, head, tail, longest, soonest = unpack('$LINE_STATE', state)
  local record = shape == $LINE and ends > clock and given <= clock and soonest > clock and holder ~= token and try('HGET', key, token)
  if record and #record > $WAITER_SIZE and byte(record) == $WAITS then
    local _, place = unpack('$HEARD', record)
    if place ~= head then
      local name = pack('$PLACE', place)
      local told = try('HSET', key, 'state', pack('$LINE_STATE', $LINE, kept, holder, ends, given, following,
        last_epoch, waiters - 1, head, tail, longest, soonest), name, '', token, '')
      if type(told) == 'number' then
        try('HDEL', key, name, token)
        answer = {'left'}
      end
    end
  end
end
-- end
if not answer then
  -- include: read
end
if not answer then
  -- include: crowd
  -- include: part
  local before, unsettled = waiters > 0 and head, waiters + closed > 0 or first_end <= now
  if unsettled then
    -- include: wide
    settle()
  end
  local own, record = what(token)
  if own == $WAITS then
    local _, place = unpack('$HEARD', record)
    leave_line(place, token)
    answer = {'left'}
  elseif own == $SHARES then
    local _, _, _, first, hold_epoch, block = unpack('$SHARER', record)
    drop_hold(token, record)
    -- include: remember
    answer = {'released'}
  elseif ends > 0 and holder == token then
    ends, asked, changed = 0, 0, true
    answer = {'released'}
  else
    answer = {'not-held'}
  end
  if opens == 1 and answer[1] == 'released' and closed > 0 then closed, changed = 0, true end
  if unsettled then
    settle()
    tell_first(before, nil)
  end
  -- include: commit
  -- include: tell
end
-- include: only
