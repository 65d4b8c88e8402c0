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
--         and where it is not just to end:
--         how many holds are to remain; 0 ends the lease
--         cool-down, µs; 0 for none
--         1 to open the lock again that was closed for a while, else 0
--
-- Returns an array with one answer for each lock, or for one lock its answer, as acquire does, which is one of
--   1                  an integer: released
--   still-held holds
--   late               it had run out, and nobody has held the lock since
--   not-held
-- or foreign, version, failed, stopped or later, as acquire says it.
--
-- Atomic: one script. Works at the server's memory limit.
-- include: now
local answers, rest, found = {}, {}, {}
local keys, argv, try, type, number = KEYS, ARGV, redis.pcall, type, #KEYS
local ahead, done = 3, 1
local packed = number > 1 and #argv == ahead + 1 and argv[ahead + 1]
-- A key that lives for longer than this is to end earlier.
local long = math.floor(now / 1000) + 2 * retention + math.floor(retention / 4)
local too_long = number > 1 and long .. ''
-- A lock for which nobody waits, and which is not closed, is given back without looking any further:
-- the state stays as it is, but for the end of the lease.
for i = 1, number do
  local key, state, written = keys[i], nil, nil
  local asked = packed and sub(packed, 54 * i - 53, 54 * i) or argv[i + ahead]
  -- What comes after one that is left, for the same lock, waits for its turn too.
  if not rest[key] then
    state = try('HGET', key, 'state')
    if state and #state == 85 and sub(state, 15, 68) == asked and sub(state, 70) > us
      and (too_long and state < too_long
        or not too_long and sub(state, 1, 13) + 0 < long and try('PTTL', key) ~= -1) then
      written = try('HSET', key, 'state', sub(state, 1, 68))
    end
    found[i] = state
  end
  -- include: settle
end
if #rest == 0 then return answers end
-- include: send
local find, general, room = string.find, {}, $ROOM
-- Ends an exclusive lease and hands the lock over to the first in line, where that one wants it
-- exclusively and was heard within half of its window, the next one is to be told nothing, and the key
-- lives long enough already. Whatever is otherwise is left to the general way, and nothing is changed.
for n = 1, #rest do
  local i, done = rest[n], false
  local key, asked, state = keys[i], argv[i + ahead], found[i]
  repeat
    if room < 1 or not state or #asked ~= 54 or #state ~= 90 or sub(state, 15, 46) ~= sub(asked, 1, 32) then
      break
    end
    local line = try('HGET', key, 'line')
    -- include: usual
    if not start then break end
    local lives = try('PTTL', key)
    if type(lives) ~= 'number' or lives == -1 then break end
    local name, following = '#' .. head, head + 1
    local low, next_name = following % 100000000, name
    if waiters ~= '1' then next_name = format('#%08d%08d', (following - low) / 100000000, low) end
    local got = try('HMGET', key, name, next_name)
    local its = got[1] or ''
    local beat, window, block, channel_at = match(its, '^ (%d+) (%d+) %d+ x 1 (%d+) ()', 34)
    local channel_ends = beat and find(its, ' ', channel_at, true)
    local ticket_ends = channel_ends and find(its, ' ', channel_ends + 1, true)
    local label = ticket_ends and match(its, '^ %d+ ([^ ]* [^ ]*)$', ticket_ends + 33)
    if not label then break end
    local waiter = sub(its, ticket_ends + 1, ticket_ends + 32)
    local ends = sub(its, 1, 16) + window * 1000
    if 2 * (ends - now) < window * 1000 then break end
    local first, kept = sub(state, 48, 63), sub(state, 1, 13)
    if first < least then first = least end
    if kept * 1000 < math.max(first + block, now) + retention * 1000 then break end
    local shape = ''
    if waiters == '1' then
      line = ''
    else
      shape = ' line'
      local text = got[2]
      for _ = 1, $NEAR do
        if text and text ~= '' then break end
        -- The place was given up.
        following = following + 1
        next_name = format('#%.0f', following)
        text = try('HMGET', key, next_name)[1]
      end
      local next_window = match(text or '', '^%d+ (%d+) ', 35)
      if not next_window or ends < sub(text, 1, 16) + math.floor(next_window * 1000 / 3) then break end
      local fewer = format('%d', waiters - 1)
      line = start .. other .. ' ' .. fewer .. ' ' .. sub(next_name, 2) .. '-' .. tail .. '/' .. fewer
    end
    local last_low, ends_low = (first + block) % 100000000, ends % 100000000
    state = kept .. ' ' .. waiter .. format(' %08d%08d %s %08d%08d', (first + block - last_low) / 100000000,
      last_low, epoch, (ends - ends_low) / 100000000, ends_low) .. shape
    local about = 'leasehold/1 ' .. sub('000000000' .. block, -10) .. ' ' .. us .. ' 1 ' .. label
    local written = try('HSET', key, 'state', state, 'lock', about, name, '', waiter, '', 'line', line)
    if refusal_of(written) then break end
    try('HDEL', key, name, waiter, line == '' and 'line' or '')
    send(sub(its, channel_at, channel_ends - 1), 'granted' .. sub(its, channel_ends, ticket_ends) .. beat .. ' '
      .. (epoch == '0000' and '0' or epoch + 0) .. ' ' .. first .. ' ' .. block)
    done = true
  until true
  if done then
    answers[i], room = 1, room - 1
  elseif room < 1 and number > 1 then
    answers[i] = {'later'}
  else
    general[#general + 1] = i
  end
end
if #general == 0 then return number == 1 and not unsent and answers[1] or with_unsent(answers) end
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
    remaining, cooldown, how = match(how, '^ (%d+) (%d+) (%d)$')
    remaining, cooldown, opens = remaining + 0, cooldown + 0, how == '1'
  end
  local lock, answer = open(keys[i], token)
  if lock then
    local before = head_of(lock)
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
