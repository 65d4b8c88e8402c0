-- Reads the lock at hand, and ends a lease that has expired.
--
-- in: key; out: answer, if the value at the key is not a lock or can't be read
-- include: state
changed, latest, failed, fields, names = false, 0, nil, {}, {}
waiters, head, tail, longest, soonest = 0, 0, 0, 0, $FAR
offset, asked, closed, limit, walked, least_window, next_preferred, next_other = 0, 0, 0, 0, 0, $FAR, 0, 0
holders, taken, first_end, nearest, cursor, least_end, ranges = 0, 0, $FAR, 0, 0, $FAR, ''
wide = true
if not state then
  kept, holder, ends, given, following, last_epoch, wide = 0, '$NOBODY', 0, 0, 0, 0, false
  local lives = try('PTTL', key)
  if lives ~= -2 then answer = type(lives) == 'number' and {'foreign'} or {'failed', lives.err} end
elseif state.err then
  answer = string.find(state.err, 'WRONGTYPE') and {'foreign'} or {'failed', state.err}
elseif #state == $PLAIN_SIZE and byte(state) == $PLAIN then
  kept, holder, ends, given, following, last_epoch = unpack('$PLAIN_FORM', state, 2)
  wide = false
elseif #state == $LINE_SIZE and byte(state) == $LINE then
  kept, holder, ends, given, following, last_epoch, waiters, head, tail, longest, soonest = unpack('$LINE_FORM', state, 2)
  next_other = tail + 1
elseif #state >= $ALL_SIZE and #state % 16 == $ALL_SIZE % 16 and byte(state) == $ALL then
  kept, holder, ends, given, following, last_epoch, waiters, head, tail, longest, soonest, offset, asked, closed, limit,
    walked, least_window, next_preferred, next_other, holders, taken, first_end, nearest, cursor, least_end =
    unpack('$ALL_FORM', state, 2)
  ranges = sub(state, $ALL_SIZE + 1)
elseif floor((byte(state) or $PLAIN) / 16) == $VERSION then
  answer = {'damaged'}
else
  answer = {'version', format('%.0f', floor(byte(state) / 16))}
end
if not answer then
  -- include: time
  if ends > 0 and ends <= now and holder ~= survives then
    holder, ends, asked, changed = '$NOBODY', 0, 0, true
  end
end
if not get then
  -- The value of a field, staged or stored; false if there is none.
  function get(name)
    local value = fields[name]
    if value == nil then
      value = redis.pcall('HGET', key, name)
      if value and value.err then value, failed = false, value end
      if value == '' then value = false end
      fields[name] = value
    end
    return value
  end

  function put(name, value)
    fields[name], names[#names + 1] = value, name
  end
end
