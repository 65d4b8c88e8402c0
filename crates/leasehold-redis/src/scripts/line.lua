-- The queue: waiters by their places. Places are given without gaps, so a queue is usually one range of them. It has
-- more ranges when waiters return whose positions the store had forgotten.

-- Stages a notification, which is sent once the change that it reports is written.
local function say(channel, text)
  messages = messages or {}
  messages[#messages + 1], messages[#messages + 2] = channel, text
end

local function forget_line()
  waiters, head, tail, longest, soonest, ranges = 0, 0, 0, 0, $FAR, ''
  walked, least_window, next_preferred, next_other, changed = 0, $FAR, 0, 0, true
end

-- Moves the head of the queue up to the first waiter, usually the next one. If more waiters left in a row than one call
-- looks at, the next call goes on.
local function trim()
  for _ = 1, $FURTHER do
    if what(get(pack('$PLACE', head))) == $WAITS then return end
    head, changed = head + 1, true
    if head > tail then
      if ranges == '' then return forget_line() end
      head, tail = unpack('$RANGE', ranges)
      ranges = sub(ranges, 17)
    end
  end
end

-- Removes a waiter from the queue.
function leave_line(place, its)
  put(pack('$PLACE', place), false)
  put(its, false)
  waiters, changed = waiters - 1, true
  if waiters <= 0 then forget_line() elseif place == head then trim() end
end

-- Includes a place in the ranges. If there are $RANGES already, only a place that is newly given gets a range of its
-- own.
--
-- Returns whether there is room.
function make_place(place, given)
  changed = true
  if waiters == 0 then
    head, tail = place, place
    return true
  end
  local all, at = pack('$RANGE', head, tail) .. ranges, 1
  local its_head, its_tail = head, tail
  while at < #all and place > its_tail + $SLACK do
    at = at + 16
    if at < #all then its_head, its_tail = unpack('$RANGE', all, at) end
  end
  local its_end = at + 16
  if at > #all or place < its_head - $SLACK then
    if not given and #all >= 16 * $RANGES then return false end
    its_head, its_tail, its_end = place, place, at
  end
  all = sub(all, 1, at - 1) .. pack('$RANGE', min(its_head, place), max(its_tail, place)) .. sub(all, its_end)
  head, tail = unpack('$RANGE', all)
  ranges = sub(all, 17)
  return true
end

-- Removes the waiters whose positions have expired: all of them in a queue of up to $STEP places. In a longer queue,
-- each call goes on from where the last one ended.
local function sweep_line()
  local left, onward, at, from, to, over = $STEP, 0, 1, head, tail, {}
  if walked == 0 then least_window = $FAR end
  while from do
    from = max(from, walked)
    local last = min(to, from + left - 1)
    for n = 0, last - from do
      local place = from + n
      local its = get(pack('$PLACE', place))
      local kind, record = what(its)
      if kind == $WAITS then
        local _, _, seen, _, window = unpack('$WAITER', record)
        if seen + window > now then
          least_window = min(least_window, seen + window)
        else
          over[#over + 1], over[#over + 2] = place, its
        end
      end
    end
    if from <= to then left = left - (last - from + 1) end
    if last < to then onward = last + 1 end
    from = nil
    if onward == 0 and at < #ranges then from, to, at = unpack('$RANGE', ranges, at) end
  end
  for n = 1, #over, 2 do leave_line(over[n], over[n + 1]) end
  changed = true
  if waiters > 0 then walked, soonest = onward, onward > 0 and now or least_window end
end

-- Issues the next fences, and returns the first.
function issue(block)
  local first = max(following, least)
  following, last_epoch, holder, asked, changed = first + block, epoch, '$NOBODY', 0, true
  return first
end

-- Grants what is free to the queue, and looks at no more than $STEP waiters.
local function serve()
  local looked, trimmed = 0, false
  while waiters > 0 and ends == 0 and closed == 0 and looked < $STEP do
    looked = looked + 1
    local its = get(pack('$PLACE', head))
    local kind, record = what(its)
    if kind == $WAITS then
      local _, place, seen, beat, window, _, _, block, mode, permits, ticket, length, from = unpack('$WAITER', record)
      -- A waiter that wants more permits than there are, since the limit was lowered, is never served.
      local in_vain = mode == 'p' and permits > limit
      if not in_vain and not admits(mode, permits, limit) then return end
      leave_line(place, its)
      -- A waiter that was not heard for half of its heartbeat timeout is passed over.
      if not in_vain and 2 * (seen + window - now) >= window then
        given = now
        local first, text = issue(block), stamp .. sub(record, from + length)
        if mode == 'x' then
          holder, ends = its, min(seen, now) + window
          put('about', text)
        else
          add_hold(its, min(seen, now) + window, first, epoch, block, mode, permits, text)
        end
        say(sub(record, from, from + length - 1), pack('$GRANTED', 'g', ticket, beat, epoch, first, block))
      end
    elseif trimmed then
      return
    else
      -- More waiters left in a row than one call looks at: this call goes on.
      trimmed = true
      trim()
    end
  end
end

-- Notifies the head of the queue when the lock can come free, if it would sleep past that moment and is not `asking`.
local function tell_head(asking)
  local free_at = max(ends, holders > 0 and first_end or 0, closed, now)
  if free_at >= now + longest / 3 then return end
  local its = get(pack('$PLACE', head))
  local kind, record = what(its)
  if kind ~= $WAITS or its == asking then return end
  if holders > 0 then
    local _, _, its_end = unpack('$SHARER', nearest_hold())
    free_at = max(its_end, closed, now)
  end
  local _, _, seen, _, window, _, _, _, _, _, ticket, length, from = unpack('$WAITER', record)
  -- A waiter sends its next request by its own clock: if the server's clock was set back, the request comes no later.
  if free_at < min(seen, now) + floor(window / 3) then
    say(sub(record, from, from + length - 1), pack('$FIRST', 'f', ticket, free_at - now))
  end
end
