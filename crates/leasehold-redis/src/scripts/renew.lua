-- Extends leases, each for itself. It neither creates nor ends one.
--
-- KEYS[i]  the i-th lock
-- ARGV[1]  see begin.lua; for each lock $RENEWAL: token; the sequence that follows the last of the lease's fences, and
--          their epoch, which the lock takes over if they are above all that it issued and the lease is exclusive; ttl,
--          from now; flags: 1 if the lease may end earlier than before, 2 if it is transferred
--          with flag 2, the token that the lease has from now on
--
-- Returns an array with one answer for each lock, or one integer that is the answer for each. An answer is one of
--   1         an integer: renewed
--   2         renewed, and its holder is requested to release
--   late      it had expired, and the lock has had no holder since; it stays ended
--   not-held
-- or foreign, damaged, version or failed, as acquire returns it.
--
-- Atomic for each lock. Works at the server's memory limit.
-- include: begin
-- include: clock
-- include: in_time
local frees, answers, same = true, nil, nil
local ttl, ends_then, new_end
for i = 1, #keys do
  local end_of, its_epoch, lasts, flags, successor
  key = keys[i]
  token, end_of, its_epoch, lasts, flags, at = unpack('$RENEWAL', request, at)
  if flags > 1 then successor, at = unpack('$TOKEN', request, at) end
  if lasts ~= ttl then
    ttl, ends_then, new_end = lasts, clock + lasts, pack('<dd', clock + lasts, clock)
  end
  -- include: state
  -- exit: a lease of a lock without waiters goes on to a later end.
  if state and #state == $PLAIN_SIZE and flags == 0 then
    local shape, lives, its, until_then, then_given, next_fence, of_epoch = unpack('$PLAIN_STATE', state)
    if shape == $PLAIN and its == token and until_then > clock and then_given <= clock and until_then <= ends_then
      and end_of <= next_fence and (end_of < next_fence or its_epoch <= of_epoch) and lives >= ends_then + retention then
      local told = try('HSET', key, 'state', sub(state, 1, $TOKEN_END) .. new_end .. sub(state, $GIVEN_END))
      if told == 0 or type(told) == 'number' then answer = 1 end
    end
  end
  -- end
  if not answer then
    -- include: read
  end
  if not answer then
    local before, ends_now, own, record = waiters > 0 and head, now + lasts, nil, nil
    local shorten = flags % 2 == 1
    local unsettled = waiters + closed > 0 or first_end <= now
    if wide then
      -- include: crowd
      if unsettled then
        -- include: wide
        settle()
      end
      own, record = what(token)
    end
    if successor then
      if not (ends > 0 and holder == successor) and not (wide and get(successor)) then
        if ends > 0 and holder == token then
          holder, changed = successor, true
        elseif own == $SHARES then
          local _, number = unpack('$SHARER', record)
          put(token, false)
          put(successor, record)
          put(pack('$SLOT', '@', number), successor)
        end
      end
      token = successor
      if wide then own, record = what(token) end
    end
    if ends > 0 and holder == token then
      -- The head of the queue waits for the end that it was given.
      if shorten and ends_now < ends then before = false end
      if shorten or ends_now > ends then ends = ends_now end
      if end_of > following or end_of == following and its_epoch > last_epoch then
        following, last_epoch = end_of, its_epoch
      end
      -- Write even if nothing changes: a caller that waits for replicas waits for a write.
      given, changed = now, true
      answer = asked > 0 and 2 or 1
    elseif own == $SHARES then
      local _, number, its_end, first, hold_epoch, block, mode, permits, from = unpack('$SHARER', record)
      if shorten and ends_now < its_end then before = false end
      if shorten or ends_now > its_end then
        put_hold(token, number, ends_now, first, hold_epoch, block, mode, permits, sub(record, from))
      end
      given, changed = now, true
      answer = string.find(record, '^%d+ %d+ %d+ %d+ [^ ]* [^ ]* ', from) and 2 or 1
    else
      local late = ends == 0 and holders == 0 and holder == '$NOBODY' and end_of == following and its_epoch == last_epoch
      answer = {late and 'late' or 'not-held'}
    end
    if unsettled then tell_first(before, nil) end
    -- include: commit
    -- include: tell
  end
  -- include: noted
end
return answers or same
