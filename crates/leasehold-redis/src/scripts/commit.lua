-- Writes the changes of the lock at hand. Its notifications are sent once they are written.
--
-- One HSET writes everything. Commands that the server may refuse come before it, or are undone: a key that lives
-- longer than it needs, and an empty field, do no harm. The key's life is extended seldom: each time by a quarter of
-- the retention more than needed.
--
-- in: the lock at hand; frees, whether to write at the server's memory limit; out: answer, if nothing was written
local idle = ends == 0 and holders + waiters + closed == 0
local needed = max(max(ends, closed, latest) - offset, following)
if failed then
  answer, messages = {'failed', failed.err}, nil
elseif not (needed >= 0 and needed <= $FAR) then
  -- Another program wrote a value that is not a time.
  answer, messages = {'damaged'}, nil
elseif changed or #names > 0 then
  local ahead, longer, shorter, text = floor(1.25 * retention), false, false, nil
  if kept < needed + retention then
    kept, longer = needed + ahead, true
  elseif idle and kept > max(following, clock) + ahead + retention then
    kept, shorter = max(following, clock) + ahead, true
  end
  if idle then offset = 0 end
  if offset + asked + closed + limit + holders + walked + next_preferred > 0 or waiters > 0 and (ranges ~= '' or next_other ~= tail + 1) then
    text = pack('<B$ALL_BODY', $ALL, kept, holder, ends, given, following, last_epoch, waiters, head, tail, longest, soonest,
      offset, asked, closed, limit, walked, least_window, next_preferred, next_other, holders, taken, first_end, nearest, cursor,
      least_end) .. ranges
  elseif waiters > 0 then
    text = pack('<B$LINE_BODY', $LINE, kept, holder, ends, given, following, last_epoch, waiters, head, tail, longest, soonest)
  else
    text = pack('<B$PLAIN_BODY', $PLAIN, kept, holder, ends, given, following, last_epoch)
  end
  local sets, gone = {'state', text}, {}
  for n = 1, #names do
    local name = names[n]
    sets[2 * n + 1], sets[2 * n + 2] = name, fields[name] or ''
    if not fields[name] then gone[#gone + 1] = name end
  end
  local left, told = format('%.0f', floor((kept - clock) / 1000)), 0
  -- A server may refuse to remove fields, too. And at its memory limit a server lets a script go on that began with a
  -- command that needs no memory.
  if state and (frees or #gone > 0) then told = try('HDEL', key, '') end
  if type(told) == 'number' and state then
    -- Another program may have removed the expiry of the key.
    local lives = longer and 0 or try('PTTL', key)
    if longer or lives == -1 then told = try('PEXPIRE', key, left) elseif type(lives) ~= 'number' then told = lives end
  end
  if type(told) == 'number' then told = try('HSET', key, spread(sets)) end
  if type(told) == 'number' and not state then
    told = try('PEXPIRE', key, left)
    if type(told) ~= 'number' then
      try('HDEL', key, 'state', spread(names))
    end
  elseif shorter and type(told) == 'number' then
    try('PEXPIRE', key, left)
  end
  if type(told) ~= 'number' then
    answer, messages = {'failed', told.err}, nil
  else
    state, written = text, true
    if #gone > 0 then try('HDEL', key, spread(gone)) end
  end
end
