-- Ends leases, or sets how many of their holds remain: each for itself. Repeating it after it ended
-- a lease gives the same answer until the lock is granted again, and for a shared lease for longer.
--
-- KEYS  i       the i-th lock
-- ARGV  1 to 3  see now.lua
--       3+i     for the i-th lock; or 4, where nothing but their end is asked of several locks: what is asked of
--               each, one behind the other. Separated by blanks:
--               token, 32 hexadecimal digits
--               the sequence that follows the last of the lease's fences, sixteen digits
--               their epoch, four digits
--         and where it is not just to end, or may have run out:
--         how many holds are to remain; 0 ends the lease
--         cool-down, µs; 0 for none
--         1 to open the lock again that was closed for a while, else 0
--         1 where the holder asked in time, by its own clock, else 0
--
-- Returns an array with one answer for each lock, or for one lock its answer, as acquire does, which is one of
--   1                  an integer: released
--   still-held holds
--   late               it had run out, and nobody has held the lock since
--   not-held
-- or foreign, damaged, version, failed, stopped or later, as acquire says it.
--
-- Atomic: one script. Works at the server's memory limit.
local keys, argv, try, number, found = KEYS, ARGV, redis.pcall, #KEYS, nil
-- A lock for which nobody waits, and which is not closed, is given back without looking any further, nor at the
-- clock: the state stays as it is, but for the end of the lease. A key that lives for longer than 2.25 times the
-- retention after the last fence, or after now, is to end earlier.
if number == 1 then
  local sub, key, asked = string.sub, keys[1], argv[4]
  found = try('HGET', key, 'state')
  if found and #found == 85 and #asked == 54 and string.find(found, asked, 15, true) == 15
    and sub(found, 1, 13) * 1000 < sub(found, 48, 63) + 2250 * argv[3] then
    local written = try('HSET', key, 'state', sub(found, 1, 68))
    if written == 0 or type(written) == 'number' then return 1 end
  end
end
-- include: now
-- Of one lock, rest and found are no tables: to make three of them takes a fiftieth of a hand-off.
local answers, rest = nil, number == 1 or nil
local ahead, done = 3, 1
if number > 1 then
  local packed = #argv == ahead + 1 and argv[ahead + 1]
  local too_long, find = math.floor(now / 1000 + 2.25 * retention) .. '', string.find
  local from = 1
  -- Most are held, and nobody waits for them. The first that is otherwise ends this.
  while packed and from <= number do
    local key = keys[from]
    local state = try('HGET', key, 'state')
    -- Of many, to find a text costs less than to cut another one out.
    if not state or #state ~= 85 or state >= too_long
      or find(state, sub(packed, 54 * from - 53, 54 * from), 15, true) ~= 15 then break end
    local written = try('HSET', key, 'state', sub(state, 1, 68))
    if written ~= 0 and type(written) ~= 'number' then break end
    from = from + 1
  end
  for i = from, number do
    local key, state, written = keys[i], nil, nil
    local asked = packed and sub(packed, 54 * i - 53, 54 * i) or argv[i + ahead]
    -- What comes after one that is left, for the same lock, waits for its turn too.
    if not (rest and rest[key]) then
      state = try('HGET', key, 'state')
      -- Of many, to find a text costs less than to cut another one out.
      if state and #state == 85 and #asked == 54 and find(state, asked, 15, true) == 15 and state < too_long then
        written = try('HSET', key, 'state', sub(state, 1, 68))
      else
        found = found or {}
        found[i] = state
      end
    end
    -- include: settle
  end
  -- include: settled
end
local find, general, refused, room = string.find, nil, nil, $ROOM
-- Ends an exclusive lease and hands the lock over to the first of a plain line, where that one wants it
-- exclusively and was heard within half of its window, and the key lives long enough already: docs/wire.md has the
-- positions. Whatever is otherwise is left to the general way, and nothing is changed. The next in line has sent its
-- next heartbeat before the new lease ends, since its window is as long, so it need not be told.
for n = 1, number == 1 and 1 or #rest do
  local i, done, state = 1, false, found
  if number > 1 then
    i = rest[n]
    state = found and found[i]
  end
  local key, asked = keys[i], argv[i + ahead]
  repeat
    if room < 1 or not state or #state < 152 or #asked ~= 54 or find(state, asked, 15, true) ~= 15 then break end
    local soonest = sub(state, 87, 102)
    -- Where no exclusive lease ends there is a word, and letters are above digits.
    if string.byte(state, 70) > 57 or soonest <= us then break end
    local head = sub(state, 104, 119)
    local name = '#' .. head
    local its = try('HGET', key, name)
    if not its or #its < 142 or sub(its, 115, 118) ~= 'x 1 ' then break end
    local window = sub(state, 138, 150)
    local lasts = window * 1000
    local ends = sub(its, 1, 16) + lasts
    if 2 * (ends - now) < lasts then break end
    local kept, first, block = sub(state, 1, 14), sub(state, 48, 63), sub(its, 104, 113)
    if first < least then first = least end
    local last = first + block
    if kept * 1000 < last + retention * 1000 then break end
    local following = head + 1
    local low = following % 100000000
    local next_head = format('%08d%08d', (following - low) / 100000000, low)
    local others = sub(state, 121, 136)
    local waits, gone = next_head ~= others, nil
    if waits then
      gone = sub(state, 151)
      if gone ~= ' 0' then
        waits = others - following ~= gone + 0
        if waits and (try('HGET', key, '#' .. next_head) or '') == '' then break end
      end
    end
    local waiter, channel_ends = sub(its, 71, 102), find(its, ' ', 140, true)
    local last_low, ends_low = last % 100000000, ends % 100000000
    local lease = format(' %08d%08d %s %08d%08d', (last - last_low) / 100000000, last_low, epoch,
      (ends - ends_low) / 100000000, ends_low)
    if waits then
      state = kept .. waiter .. lease .. ' ' .. soonest .. ' ' .. next_head .. ' ' .. others .. ' ' .. window .. gone
    else
      state = kept .. waiter .. lease
    end
    local written = try('HSET', key, 'state', state,
      'lock', 'leasehold/1 ' .. block .. ' ' .. us .. ' ' .. sub(its, channel_ends + 1), name, '', waiter, '')
    if written ~= 0 and type(written) ~= 'number' then break end
    try('HDEL', key, name, waiter)
    local channel, text = sub(its, 140, channel_ends - 1), 'granted ' .. sub(its, 119, 139) .. sub(its, 32, 42)
      .. epoch .. ' ' .. first .. ' ' .. block
    local told = try('PUBLISH', channel, text)
    if type(told) ~= 'number' then
      refused = refused or {}
      refused[#refused + 1], refused[#refused + 2] = channel, text
    end
    done = true
  until true
  if done and number > 1 then
    answers[i], room = 1, room - 1
  elseif room < 1 and number > 1 then
    answers[i] = {'later'}
  elseif not done then
    general = general or {}
    general[#general + 1] = i
  end
end
if not (general or refused) then return answers or 1 end
answers = answers or {1}
-- include: send
-- What was refused is sent as all else is, and is put behind the answer if it is refused again.
for n = 1, refused and #refused or 0, 2 do send(refused[n], refused[n + 1]) end
if not general then return with_unsent(answers) end
local frees = true
-- include: each
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
each(general, 3, function(i)
  local asked = argv[i + ahead]
  local token, last, its_epoch = sub(asked, 1, 32), sub(asked, 34, 49) - 1, sub(asked, 51, 54) + 0
  local how = sub(asked, 55)
  local remaining, cooldown, opens = 0, 0, false
  if how ~= '' then
    remaining, cooldown, opens, how = match(how, '^ (%d+) (%d+) (%d) (%d)$')
    remaining, cooldown, opens = remaining + 0, cooldown + 0, opens == '1'
  end
  local lock, answer = open(keys[i], token)
  if lock then
    local before = head_of(lock)
    -- A lease that is ended in time does not run out before.
    if how ~= '0' and remaining == 0 and lock.holder == token and lock.expires <= now then
      lock.expires = now + 1
    end
    expire_and_grant(lock)
    local closed, ended = lock.closed, false
    local mine, hold = lock.holder == token, hold_of(lock, token)
    if remaining > 0 and (mine or hold) then
      if mine then
        lock.profile, lock.dirty = digits(remaining) .. match(lock.profile, '^%d+(.*)$'), true
      else
        hold.profile = digits(remaining) .. match(hold.profile, '^%d+(.*)$')
        put_hold(lock, hold)
      end
      answer = {'still-held', remaining}
    elseif mine or hold then
      if mine then lock.holder = nil else drop_hold(lock, hold) end
      remember_release(lock, token, hold)
      ended, answer = true, 1
    elseif has_released(lock, token) then
      answer = 1
    elseif is_late(lock, its_epoch, last) then
      ended, answer = true, {'late'}
    else
      answer = {'not-held'}
    end
    if ended then
      if opens then reopen(lock) end
      close(lock, cooldown)
    end
    -- A head that reckons with the end of a lease has to reckon with the cool-down now.
    if lock.closed > closed then before = nil end
    expire_and_grant(lock)
    tell_first(lock, before)
    answer = commit(lock) or answer
  end
  answers[i] = answer
  return true
end, function(i, why) answers[i] = {'stopped', why} end)
return tell(answers)
