-- Ends leases, or sets how many of their holds remain, each for itself. A request that is repeated after it ended a
-- lease gets the same answer until the lock is granted again. For a shared lease it gets it for longer.
--
-- KEYS[i]  the i-th lock
-- ARGV[1]  see begin.lua; for each lock $END: token; the sequence that follows the last of the lease's fences, and
--          their epoch; how many holds remain, 0 to end the lease; cooldown, only if there is one lock; flags: 1 to end
--          the present cooldown, 2 if the holder sent the request in time, by its own clock
--
-- Returns an array with one answer for each lock, or one integer that is the answer for each. An answer is one of
--   1                  an integer: released
--   still-held holds
--   late               it had expired, and the lock has had no holder since
--   not-held
-- or foreign, damaged, version, failed or later, as acquire returns it.
--
-- Atomic for each lock. Works at the server's memory limit.
-- include: begin
local frees, answers, same, room = true, nil, nil, $ROOM
local too_long = floor(1.25 * retention) + retention
for i = 1, #keys do
  local end_of, its_epoch, remaining, cooldown, flags
  key = keys[i]
  token, end_of, its_epoch, remaining, cooldown, flags, at = unpack('$END', request, at)
  -- include: state
  -- exit: a lease that is released in time ends without a look at the clock.
  if state and #state == $PLAIN_SIZE and flags > 1 and remaining == 0 and cooldown == 0 and room > 0 then
    local shape, lives, its, until_then, _, next_fence = unpack('$PLAIN_STATE', state)
    if shape == $PLAIN and its == token and until_then > 0 and lives <= next_fence + too_long then
      local told = try('HSET', key, 'state', sub(state, 1, $TOKEN_END) .. '$NO_END' .. sub(state, $ENDS_END))
      if told == 0 or type(told) == 'number' then answer, room = 1, room - 1 end
    end
  end
  -- end
  if not answer and not clock then
    -- include: clock
    -- A release with a cooldown is alone in its call: delayed, it would close a lock that others use by then.
    if cooldown > 0 then
      -- include: in_time
    end
  end
  -- exit: the head of the queue gets the lease, if it was heard, all positions last, and the next stays asleep.
  if not answer and state and #state == $LINE_SIZE and flags > 1 and remaining == 0 and cooldown == 0 and room > 0 then
    shape, kept, holder, ends, given, following, last_epoch, waiters, head, tail, longest, soonest = unpack('$LINE_STATE', state)
    local place = pack('$PLACE', head)
    local its = shape == $LINE and holder == token and ends > 0 and given <= clock and soonest > clock and try('HGET', key, place)
    local follows = waiters == 1 or tail - head < waiters or #(try('HGET', key, pack('$PLACE', head + 1)) or '') > 0
    local record = its and follows and #its > 0 and try('HGET', key, its)
    if record and #record > $WAITER_SIZE and byte(record) == $WAITS then
      local _, _, seen, beat, window, _, _, block, mode, _, ticket, length, from = unpack('$WAITER', record)
      local first, text = max(following, least), nil
      ends, following = min(seen, clock) + window, first + block
      if mode == 'x' and 2 * (ends - clock) >= window and (waiters == 1 or ends >= clock + longest / 3)
        and kept >= max(ends, following) + retention then
        if waiters > 1 then
          text = pack('$LINE_STATE', $LINE, kept, its, ends, clock, following, epoch, waiters - 1, head + 1, tail, longest, soonest)
        else
          text = pack('$PLAIN_STATE', $PLAIN, kept, its, ends, clock, following, epoch)
        end
        local told = try('HSET', key, 'state', text, 'about', clock_stamp .. sub(record, from + length), place, '', its, '')
        if type(told) == 'number' then
          try('HDEL', key, place, its)
          messages = {sub(record, from, from + length - 1), pack('$GRANTED', 'g', ticket, beat, epoch, first, block)}
          answer, room = 1, room - 2
        end
      end
    end
  end
  -- end
  if not answer then
    -- A lease that is released in time can't expire before.
    survives = flags > 1 and remaining == 0 and token or nil
    -- include: read
    wide = wide or cooldown > 0
    room = room - (wide and 4 or 1)
    if not answer and room < 0 then answer = {'later'} end
  end
  if not answer then
    local before, was_closed, own, record, ended = waiters > 0 and head, closed, nil, nil, false
    local unsettled = waiters + closed > 0 or first_end <= now
    if wide then
      -- include: crowd
      -- include: part
      if unsettled then
        -- include: wide
        settle()
      end
      own, record = what(token)
      was_closed = closed
    end
    if ends > 0 and holder == token then
      changed = true
      if remaining > 0 then
        put('about', (string.gsub(get('about') or stamp .. '1 1  ', '^(%d+ %d+ %d+) %d+', '%1 ' .. format('%.0f', remaining))))
      else
        ends, asked, ended = 0, 0, true
      end
    elseif own == $SHARES then
      local _, _, _, first, hold_epoch, block, _, _, from = unpack('$SHARER', record)
      if remaining > 0 then
        local text = string.gsub(sub(record, from), '^(%d+ %d+ %d+) %d+', '%1 ' .. format('%.0f', remaining))
        put(token, sub(record, 1, from - 1) .. text)
      else
        drop_hold(token, record)
        -- include: remember
        ended = true
      end
    else
      local past = holder == token and token or get('ended') or ''
      answer = {'not-held'}
      for n = 1, #past, 16 do
        if sub(past, n, n + 15) == token then answer = 1 end
      end
      -- A transferred lease is alive under another token, with the same fences.
      if answer ~= 1 and ends == 0 and holders == 0 and holder == '$NOBODY' and end_of == following and its_epoch == last_epoch then
        answer, ended = {'late'}, true
      end
    end
    if not answer then answer = remaining > 0 and {'still-held', floor(remaining)} or 1 end
    if ended then
      if flags % 2 == 1 and closed > 0 then closed, changed = 0, true end
      if cooldown > 0 and now + cooldown > closed then closed, given, changed = now + cooldown, now, true end
    end
    if unsettled then
      settle()
      tell_first(closed <= was_closed and before, nil)
    end
    -- include: commit
  end
  -- include: tell
  -- include: noted
end
return answers or same
