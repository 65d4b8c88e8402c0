-- Acquires locks, each for itself. If a lock is busy, it takes or renews a position in the queue, or returns what
-- blocks it. A request that is repeated with the same tokens counts once.
--
-- KEYS[i]   the i-th lock
-- ARGV[1]   see begin.lua; for each lock $WHOSE: token; where in the request it says what is wanted
--           then, for one or more locks, $WANTED: ttl; how many fences; holds; mode: x exclusive, s shared, p permits,
--           j exclusive but for the same bond; permits, or the bond; all permits of the semaphore; cooldown after an
--           immediate grant; flags; length of the label
--           with flag 2, to wait in the queue, $IN_LINE: ticket; heartbeat, counted up with each request; heartbeat
--           timeout: how long the position lasts from now, and a lease that is granted to it; how many more wait behind
--           it in its process; position returned before, or -1; how many may wait at most, or -1; length of the
--           channel; and the channel
--           with flag 4, to take it only if these fences are the last that were issued, $AFTER: epoch; sequence
--           then the label, COUNT HOLDS OWNER METADATA; flag 1: to go before all waiters without it
--
-- Returns an array with one answer for each lock, or one integer that is the answer for each. An answer is one of
--   fence                          an integer: granted; sequence of its first fence, in the epoch of the request
--   already now state what         it has the lease: see "seen" in docs/wire.md
--   busy now state what            what blocks the lock
--   waiting now state what place
--   wrong-kind limit               in use with this limit, or 0 as a lock
--   too-many-permits
--   queue-full waiters
--   foreign                        the value at the key is not a lock; it stays as it is
--   damaged                        the lock's record can't be read; it stays as it is
--   version n                      the record has another version; it stays as it is
--   failed error                   the server refused what this lock needs; it stays as it is
--   later                          the call had run for long; this lock was left for another call
--
-- Atomic for each lock. It reads and writes its keys only.
-- include: begin
-- include: clock
-- include: in_time
-- include: wish
local frees, answers, same, room = false, nil, nil, $ROOM
for i = 1, #keys do
  -- include: wanted
  -- include: state
  -- exit: a lock that is free is taken.
  if state and #state == $PLAIN_SIZE and usual and room > 0 then
    local shape, lives, _, until_then, _, next_fence = unpack('$PLAIN_STATE', state)
    if shape == $PLAIN and until_then <= clock and next_fence <= least and lives >= lasts then
      if not lease then lease, about = pack('<dddH', clock + ttl, clock, least + block, epoch), clock_stamp .. label end
      local told = try('HSET', key, 'state', sub(state, 1, $KEPT_END) .. token .. lease, 'about', about)
      if told == 0 or type(told) == 'number' then answer, room = least, room - 1 end
    end
  end
  -- exit: behind a lease that goes on, in a queue whose positions all last, a waiter joins or is heard.
  if state and #state == $LINE_SIZE and waits and its_limit == 0 and not preferred and room > 0 then
    shape, kept, holder, ends, given, following, last_epoch, waiters, head, tail, longest, soonest = unpack('$LINE_STATE', state)
    if shape == $LINE and ends > clock and given <= clock and soonest > clock and holder ~= token and window <= longest
      and kept >= clock + window + retention then
      local record, what, text, place, told = try('HGET', key, token), try('HGET', key, 'about') or '', state, nil, nil
      if #what == 0 then
        -- Left to the code below, as is what can't be read.
      elseif not record and brought < 0 and most < 0 then
        place = tail + 1
        text = pack('$LINE_STATE', $LINE, kept, holder, ends, clock, following, last_epoch, waiters + 1, head, place, longest,
          min(soonest, clock + window))
        told = try('HSET', key, 'state', text, pack('$PLACE', place), token, token,
          pack('$WAITER', 'w', place, clock, beat, window, behind, clock, block, mode, permits, ticket, #channel)
          .. channel .. waiting_label)
      elseif record and #record > $WAITER_SIZE and byte(record) == $WAITS and clock + window >= soonest then
        local _, its_place, _, _, _, _, arrived, from = unpack('$HEARD', record)
        place = its_place
        told = try('HSET', key, token,
          pack('$HEARD', 'w', place, clock, beat, window, behind, arrived) .. sub(record, from))
      end
      if type(told) == 'number' then
        answer = {'waiting', floor(clock), text, what, floor(place)}
        room = room - 2
      end
    end
  end
  -- end
  if not answer then
    -- include: read
    wide = wide or mode ~= 'x' or cooldown > 0 or waits and ends > 0 and holder ~= token
    room = room - (wide and 4 or state and 1 or 2)
    if not answer and room < 0 then answer = {'later'} end
  end
  if not answer then
    local before, was_closed, own, record, word, place = waiters > 0 and head, closed, nil, nil, nil, nil
    if wide then
      -- include: crowd
      -- include: join
      own, record = what(token)
      if own == $WAITS and waits then
        -- The heartbeat counts before the queue is served, or the waiter would be passed over during its own request.
        local _, its_place, _, _, _, _, arrived, from = unpack('$HEARD', record)
        put(token, pack('$HEARD', 'w', its_place, now, beat, window, behind, arrived) .. sub(record, from))
        latest, longest, soonest = now + window, max(longest, window), min(soonest, now + window)
      end
      local unsettled = own or waits or waiters + closed > 0 or first_end <= now
      if unsettled or after or not admits(mode, permits, its_limit) then
        -- include: part
      end
      if unsettled then
        -- include: wide
        settle()
        own, record = what(token)
      end
      was_closed = closed
    end
    -- include: look
    if answer then
      -- Refused.
    elseif own == $SHARES or ends > 0 and holder == token then
      -- include: prolong
    elseif own == $WAITS and not (free and has_bond) then
      local _
      _, place = unpack('$HEARD', record)
      word = 'waiting'
    elseif free then
      if own then
        local _, its_place = unpack('$HEARD', record)
        leave_line(its_place, token)
      end
      -- include: grant
      -- Waiters behind it with the same bond need not wait any longer.
      if own then settle() end
    elseif not waits then
      word = 'busy'
    elseif brought < 0 and most >= 0 and waiters >= most then
      answer = {'queue-full', floor(waiters)}
    else
      place = known and make_place(known, false) and known
      local first = preferred
      if place then first = place < $BEHIND end
      local next_place = first and next_preferred or next_other
      if next_place == 0 then next_place = first and now or now + $BEHIND end
      if not place then
        place = next_place
        make_place(place, true)
      end
      next_place = max(next_place, place + 1)
      if first then next_preferred = next_place else next_other = next_place end
      put(pack('$PLACE', place), token)
      put(token, pack('$WAITER', 'w', place, now, beat, window, behind, now, block, mode, permits, ticket, #channel)
        .. channel .. waiting_label)
      limit, waiters, given, changed = its_limit, waiters + 1, now, true
      latest, longest, soonest = now + window, max(longest, window), min(soonest, now + window)
      word = 'waiting'
    end
    if waiters > 0 then tell_first(closed <= was_closed and before, token) end
    -- include: seen
    -- include: commit
    -- include: shown
    -- include: tell
  end
  -- include: noted
end
return answers or same
