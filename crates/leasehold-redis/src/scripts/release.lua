-- Ends leases, or sets how many of their holds remain: each for itself. Repeating it after it ended
-- a lease gives the same answer until the lock is granted again, and for a shared lease for longer.
--
-- KEYS  i       the i-th lock
-- ARGV  1 to 3  see now.lua; and for the i-th lock, from 4i on:
--       token
--       epoch of the lease's fences
--       sequence of the last of them
--       an empty string to end the lease; else, separated by blanks:
--         how many holds are to remain; 0 ends the lease
--         cool-down, µs; 0 for none
--         1 to open the lock again that was closed for a while, else 0
--
-- Returns an array with one answer for each lock, which is one of
--   1                  an integer: released
--   still-held holds
--   late               it had run out, and nobody has held the lock since
--   not-held
-- or foreign, version, failed, stopped or later, as acquire says it.
--
-- Atomic: one script. Works at the server's memory limit.
-- include: now
local answers, rest, found = {}, {}, {}
local function short_way(i)
  local key, at = KEYS[i], 4 * i
  local done = false
  if ARGV[at + 3] == '' and not rest[key] then
    -- Nobody waits and nothing is closed: the record stays as it is but for one word.
    local got = redis.pcall('HMGET', key, 'lock', 'line')
    local stored = got[1]
    if stored and not got[2] and sub(stored, 111, 142) == ARGV[at]
      and sub(stored, 1, 16) == 'leasehold/1 held' and sub(stored, 94, 109) == '0000000000000000'
      and sub(stored, 18, 33) + sub(stored, 144, 156) * 1000 > now
      and sub(stored, 144, 156) + 0 <= retention and redis.call('PTTL', key) ~= -1 then
      -- At the memory limit the way below is open.
      done = not refusal_of(
        redis.pcall('HSET', key, 'lock', 'leasehold/1 free' .. sub(stored, 17)))
    end
    found[i] = got
  end
  -- What comes after it for the same lock waits for its turn, too.
  if done then answers[i] = 1 else rest[#rest + 1], rest[key] = i, true end
end
if #KEYS == 1 then
  short_way(1)
  if #rest == 0 then return answers end
end
-- include: each
if #KEYS > 1 then
  each(all, 0, short_way, function(i) rest[#rest + 1], rest[KEYS[i]] = i, true end)
end
if #rest == 0 then return answers end
-- include: send
-- include: usual
-- Ends an exclusive lease and hands the lock over to the first in line, where that one wants it
-- exclusively and was heard within half of its window, the next one is to be told nothing, and the
-- key lives long enough already.
--
-- Returns whether it is done; else the general way is open, and nothing is changed.
local function hand_on(key, token, stored, line)
  if sub(stored, 111, 142) ~= token or not usual_end(stored) or redis.call('PTTL', key) == -1 then
    return false
  end
  local _, start, other, head, tail, number = usual_line(line)
  if not start then return false end
  local name, following = '#' .. head, head + 1
  local got = redis.call('HMGET', key, name, format('#%.0f', following))
  local seen, beat, window, block, channel, ticket, waiter, label = match(got[1] or '',
    '^(%d+) %d+ (%d+) (%d+) %d+ x 1 (%d+) (%S+) (%d+) (%S+) %d+ ([^ ]* [^ ]*)$')
  if not seen then return false end
  local ends = seen + window * 1000
  if 2 * (ends - now) < window * 1000 then return false end
  local first, kept = sub(stored, 35, 50) + sub(stored, 52, 61), sub(stored, 80, 92)
  if first > least + 0 then first = format('%016.0f', first) else first = least end
  if kept * 1000 < math.max(first + block, now) + retention * 1000 then return false end
  if number == '1' then
    line = ''
  else
    local text = got[2]
    for _ = 1, $STEP do
      if text and text ~= '' then break end
      -- The place was given up.
      following = following + 1
      text = redis.call('HMGET', key, format('#%.0f', following))[1]
    end
    local next_window = match(text or '', '^%d+ (%d+) ', 35)
    if not next_window or ends < sub(text, 1, 16) + math.floor(next_window * 1000 / 3) then
      return false
    end
    local fewer = number - 1
    line = start .. other .. ' ' .. fewer .. format(' %.0f-', following) .. tail .. '/' .. fewer
  end
  local record = 'leasehold/1 held ' .. seen .. ' ' .. first .. ' ' .. sub('000000000' .. block, -10)
    .. ' ' .. us .. ' ' .. kept .. ' 0000000000000000 ' .. waiter .. ' '
    .. sub('000000000000' .. window, -13) .. ' ' .. epoch .. ' 1 ' .. label
  local written = redis.pcall('HSET', key, 'lock', record, name, '', waiter, '', 'line', line)
  if refusal_of(written) then return false end
  redis.pcall('HDEL', key, name, waiter, line == '' and 'line' or '')
  send(channel, 'granted ' .. ticket .. ' ' .. beat .. ' ' .. epoch + 0 .. ' ' .. first .. ' ' .. block)
  return true
end
local general = {}
local function go_on(i) general[#general + 1] = i end
each(rest, 1, function(i)
  local got = found[i]
  if got and got[1] and got[2] and hand_on(KEYS[i], ARGV[4 * i], got[1], got[2]) then
    answers[i] = 1
    return true
  end
  go_on(i)
end, go_on)
if #general == 0 then return with_unsent(answers) end
local frees = true
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
each(general, 3, function(i)
  local at = 4 * i
  local token, its_epoch, last = ARGV[at], ARGV[at + 1] + 0, ARGV[at + 2] + 0
  local remaining, cooldown, opens = 0, 0, false
  if ARGV[at + 3] ~= '' then
    local how
    remaining, cooldown, how = match(ARGV[at + 3], '^(%d+) (%d+) (%d)$')
    remaining, cooldown, opens = remaining + 0, cooldown + 0, how == '1'
  end
  local lock, answer = open(KEYS[i], token)
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
