-- Takes locks, takes or renews a place in their lines, or says what stands in the way: each lock
-- for itself. Repeating it with the same tokens counts nothing twice.
--
-- KEYS  i       the i-th lock
-- ARGV  1 to 4, and 4+i for the i-th lock: see asked.lua; or where ARGV[4] is asked of all of several locks, 5:
--       their tokens, one behind the other. What is asked of a lock has, separated by blanks:
--       - for an exclusive hold at once or not at all, else +
--       ttl, ms, thirteen digits
--       how many fences to reserve, ten digits
--       holds, owner and metadata, the last two without a blank, and maybe empty
--       and after a +:
--         mode: x exclusive, s shared, p permits, j exclusive but for the same bond
--         permits wanted (1 for x and s), or the bond
--         all permits of the semaphore (0 for others)
--         1 to go before all who don't, else 0
--         how long to close the lock with an immediate grant, µs; 0 for not at all
--         and, to take it only where these fences are the last that were issued: the word after,
--         their epoch, and the sequence of the last of them
--         or, to wait in line:
--         channel to tell of the grant
--         ticket, repeated in messages
--         heartbeat, counted up with each request
--         window, ms: how long the place is kept, and a lease handed over runs, from now
--         how many more wait behind it in its process
--         place told before, or -
--         how many may wait at most, or -
--
-- Returns an array with one answer for each lock; the answer about one lock may come without an array around it,
-- where it is an integer or an array that begins with a word. It is one of
--   fence               an integer: granted; sequence of its first fence, in the epoch of ARGV[1]
--   already epoch fence count holds
--   busy free_in [mode permits limit epoch fence held left profile]   times in µs
--   waiting position place free_in [mode … profile]
--   wrong-kind limit    in use with this limit, or 0 as a lock
--   too-many-permits
--   queue-full waiters
--   foreign             what stands at the key is not a lock's record; left as it is
--   version n           it is one of another version; left as it is
--   failed error        the server refused what this lock needs; left as it is
--   stopped error       of several locks: what was asked of this one was not done to the end
--   later               of several locks: the call took long already; nothing was done
--
-- Atomic: one script. It reads and writes its keys only.
-- include: now
local answers, rest = {}, {}
local keys, argv, try, type, number = KEYS, ARGV, redis.pcall, type, #KEYS
local ahead, done = 4, least == us and now or least + 0
local packed = number > 1 and #argv == ahead + 1 and argv[ahead + 1]
-- What was asked last, and what it takes to grant it.
local usual, about, tail, kept, needed, longer, left
-- How many were looked at; one that was never used counts twice. All after the last are put off, so that
-- what is asked of one lock is done in its order.
local looked = 0
-- A lock that was never used, or is free, is taken without looking any further. No function is made
-- for that: Lua would make it anew in each call.
for i = 1, number do
  if looked >= $FREE then
    answers[i] = {'later'}
  else
    looked = looked + 1
    local key, asked, what = keys[i], packed and sub(packed, 32 * i - 31, 32 * i) or argv[i + ahead], argv[ahead]
    local token = asked
    if #asked > 32 then token, what = sub(asked, 1, 32), sub(asked, 33) end
    if what ~= usual and string.byte(what) == 45 then
      local block = sub(what, 17, 27)
      local ends, following = now + sub(what, 3, 15) * 1000, done + block
      local low, its_low = following % 100000000, ends % 100000000
      kept = math.ceil(math.max(ends, following) / 1000) + retention
      usual = what
      about = 'leasehold/1 ' .. block .. us .. ' ' .. sub(what, 28)
      tail = format(' %08d%08d %s %08d%08d', (following - low) / 100000000, low, epoch,
        (ends - its_low) / 100000000, its_low)
      needed, longer = number > 1 and kept .. '', nil
    end
    local state, written
    -- What comes after one that is left, for the same lock, waits for its turn too.
    if what == usual and not rest[key] then
      state = try('HGET', key, 'state')
      local free = state and #state == 68 and sub(state, 48, 63) <= least
      local lives = free and (needed and state >= needed or not needed and sub(state, 1, 13) + 0 >= kept)
      if not (lives or longer) and (free or not state) then
        local lasts = kept + math.floor(retention / 4)
        longer, left = format('%013.0f ', lasts), format('%.0f', lasts - math.floor(now / 1000))
      end
      if lives then
        written = (number > 1 or try('PTTL', key) ~= -1)
          and try('HSET', key, 'state', sub(state, 1, 14) .. token .. tail, 'lock', about)
      elseif free then
        written = type(try('PEXPIRE', key, left)) == 'number'
          and try('HSET', key, 'state', longer .. token .. tail, 'lock', about)
      elseif not state and try('PTTL', key) == -2 then
        looked = looked + 1
        written = try('HSET', key, 'state', longer .. token .. tail, 'lock', about)
        if type(written) == 'number' and type(try('PEXPIRE', key, left)) ~= 'number' then
          try('HDEL', key, 'state', 'lock')
          written = nil
        end
      end
    end
    -- include: settle
  end
end
if #rest == 0 then return answers end
local find = string.find
local general, room = {}, $ROOM
-- Takes or renews a place behind an exclusive lease, for somebody who wants no permits and is not
-- preferred, where the key lives long enough already. Who joins brings no place along, and gets the
-- one behind the last in the line. Whatever is otherwise is left to the general way, and nothing is changed.
for n = 1, #rest do
  local i, answer = rest[n], nil
  local key, token, what = keys[i], argv[i + 4], argv[4]
  if #token > 32 then token, what = sub(token, 1, 32), sub(token, 33) end
  repeat
    -- What comes after one that is left, for the same lock, waits for its turn too.
    if general[key] or room < 1 then break end
    local profile_ends, mode, address_at = match(what, '() ([xs]) 1 0 0 %d+ ()', 28)
    local channel_ends = mode and find(what, ' ', address_at, true)
    if not channel_ends then break end
    local address_ends, heard, window, told, most =
      match(what, '^ %d+() (%d+ (%d+) %d+) (%S+) (%S+)$', channel_ends)
    if not most then break end
    local got = try('HMGET', key, 'state', 'line', token, '#' .. told, 'lock')
    local state, line, name, grant = got[1], got[2], got[3], got[5]
    -- include: usual
    if not lease_ends or not grant or sub(state, 15, 46) == token then break end
    if sub(grant, 1, 12) ~= 'leasehold/1 ' or #grant < 40 then break end
    local count, granted, its_profile = sub(grant, 13, 22), sub(grant, 24, 39), sub(grant, 41)
    local ends = now + window * 1000
    if sub(state, 1, 13) * 1000 < ends + retention * 1000 then break end
    local lives = try('PTTL', key)
    if type(lives) ~= 'number' or lives == -1 then break end
    if line and (not start or ends < least_end + 0 or ends < sub(line, 1, 16) + 0) then break end
    local place, before, written
    if name then
      if not line or string.byte(name) ~= 35 then break end
      local text = name == '#' .. told and got[4] or try('HMGET', key, name)[1] or ''
      local fixed = match(text, '^%d+ %d+ %d+( .*)$', 35)
      if not fixed then break end
      place = sub(name, 2) + 0
      if place < head + 0 or place > tail + 0 then break end
      before = math.min(place - head, waiters - 1)
      written = try('HSET', key, name, us .. ' ' .. sub(text, 18, 34) .. heard .. fixed)
    else
      if told ~= '-' or most ~= '-' and (line and waiters or 0) + 0 >= most + 0 then break end
      if line then
        place, before = other + 0, math.min(other - head, waiters + 0)
        if place <= tail + 0 or place > tail + $SLACK then break end
        name = '#' .. other
        local low, more = (place + 1) % 100000000, format('%d', waiters + 1)
        line = start .. format('%08d%08d ', (place + 1 - low) / 100000000, low) .. more .. ' ' .. head .. '-'
          .. other .. '/' .. more
      else
        place, before = now + $BEHIND, 0
        local low, its_low, next_low = ends % 100000000, place % 100000000, (place + 1) % 100000000
        local until_then = format('%08d%08d ', (ends - low) / 100000000, low)
        local text = format('%08d%08d', (place - its_low) / 100000000, its_low)
        name = '#' .. text
        line = until_then .. until_then
          .. format('0 0 %08d%08d 1 ', (place + 1 - next_low) / 100000000, next_low) .. text .. '-' .. text .. '/1'
        state = state .. ' line'
      end
      written = try('HSET', key, name, us .. ' ' .. us .. ' ' .. heard .. ' ' .. mode .. ' 1 '
        .. match(what, '^0*(%d+)', 17) .. sub(what, address_at - 1, address_ends - 1) .. ' ' .. token .. ' '
        .. sub(what, 28, profile_ends - 1), token, name, 'line', line, 'state', state)
    end
    if refusal_of(written) then break end
    local left = lease_ends - now
    answer = {'waiting', before, place, left, 'x', 1, 0, sub(state, 65, 68) + 0,
      sub(state, 48, 63) - count, math.max(now - granted, 0), left, its_profile}
  until true
  if answer then
    answers[i], room = answer, room - 1
  elseif room < 1 and number > 1 then
    answers[i] = {'later'}
  else
    general[#general + 1], general[key] = i, true
  end
end
if #general == 0 then return number == 1 and answers[1] or answers end
local frees = false
-- include: asked
-- include: each
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
-- include: take
local function join(lock, wanted)
  if not wanted.place and wanted.most and lock.waiters >= wanted.most then
    return {'queue-full', lock.waiters}
  end
  lock.limit = wanted.limit
  local place = wanted.place
  if place and not (may_have_given(lock, place) and make_place(lock, place, false)) then
    place = nil
  end
  local preferred = wanted.preferred
  if place then preferred = place < $BEHIND end
  local following = preferred and lock.next_preferred or lock.next_other
  if following == 0 then following = preferred and now or now + $BEHIND end
  if not place then
    place = following
    make_place(lock, place, true)
  end
  following = math.max(following, place + 1)
  if preferred then lock.next_preferred = following else lock.next_other = following end
  put(lock, field_of(place), us .. ' ' .. us .. ' ' .. wanted.beat .. ' ' .. digits(wanted.window)
    .. ' ' .. wanted.behind .. ' ' .. wanted.mode .. ' ' .. digits(wanted.permits) .. ' ' .. digits(wanted.count) .. ' '
    .. wanted.channel .. ' ' .. wanted.ticket .. ' ' .. wanted.token .. ' ' .. wanted.profile)
  put(lock, wanted.token, field_of(place))
  lock.waiters, lock.dirty, lock.line_dirty = lock.waiters + 1, true, true
  keep_place(lock, now + wanted.window * 1000)
  return {'waiting'}, place
end
each(general, 3, function(i)
  local wanted = wanted_of(i)
  local token = wanted.token
  local lock, answer = open(KEYS[i], token, wanted.place and digits(wanted.place))
  if lock then
    local before = head_of(lock)
    local place = wanted.channel and place_of(lock, token)
    if place then
      -- A waiter is heard before the line is served, or it would be passed over while it asks.
      local arrived, fixed = match(get(lock, field_of(place)), '^%d+ (%d+) %d+ %d+ %d+( .*)$')
      put(lock, field_of(place),
        us .. ' ' .. arrived .. ' ' .. wanted.beat .. ' ' .. digits(wanted.window) .. ' '
          .. wanted.behind .. fixed)
      keep_place(lock, now + wanted.window * 1000)
    end
    expire_and_grant(lock)
    local closed = lock.closed
    local mine, hold = lock.holder == token, hold_of(lock, token)
    place = place_of(lock, token)
    answer = refusal(lock, wanted, mine or hold or place)
    if answer then
      -- Refused.
    elseif mine or hold then
      answer = prolong(lock, wanted, hold)
    elseif place and has_bond(lock, wanted) and is_free(lock, wanted) then
      leave_line(lock, place, token)
      grant(lock, wanted)
      answer, place = lock.first, nil
      -- Those behind it that have the bond too need not wait any longer.
      expire_and_grant(lock)
    elseif place then
      answer = {'waiting'}
    elseif is_free(lock, wanted) then
      grant(lock, wanted)
      answer = lock.first
    elseif not wanted.channel then
      answer = add_contention(lock, {'busy'})
    else
      answer, place = join(lock, wanted)
    end
    -- A head that reckons with the end of a lease has to reckon with the closing now.
    if lock.closed > closed then before = nil end
    tell_first(lock, before, token)
    if place and answer[1] == 'waiting' then
      answer[2], answer[3] = position_of(lock, place), place
      add_contention(lock, answer)
    end
    answer = commit(lock) or answer
  end
  answers[i] = answer
  return true
end, function(i, why) answers[i] = {'stopped', why} end)
return tell(answers)
