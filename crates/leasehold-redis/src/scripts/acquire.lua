-- Takes locks, takes or renews a place in their lines, or says what stands in the way: each lock
-- for itself. Repeating it with the same tokens counts nothing twice.
--
-- KEYS  i       the i-th lock
-- ARGV  1 to 3  see now.lua; and for the i-th lock, from 5i-1 on:
--       token, 32 hexadecimal digits
--       ttl, ms, thirteen digits
--       how many fences to reserve, ten digits
--       holds, owner and metadata, separated by a blank, each without one
--       an empty string, for an exclusive hold at once or not at all; else, separated by blanks:
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
-- Returns an array with one answer for each lock, which is one of
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
local function short_way(i)
  local key, at = KEYS[i], 5 * i - 1
  local answer
  if ARGV[at + 4] == '' and not rest[key] then
    -- A lock that was never used, or is free, is taken without looking any further.
    local got = redis.pcall('HMGET', key, 'lock', 'line')
    local stored, in_line = got[1], got[2]
    local lives = not got.err and redis.call('PTTL', key)
    local free
    if got.err or in_line then
      free = false
    elseif stored then
      free = sub(stored, 1, 16) == 'leasehold/1 free'
        and sub(stored, 35, 50) + sub(stored, 52, 61) <= least + 0
    else
      free = lives == -2
    end
    if free then
      local over = math.max(now + ARGV[at + 1] * 1000, least + ARGV[at + 2])
      local kept, left = stored and sub(stored, 80, 92), nil
      local refused
      if not kept or kept * 1000 < over + retention * 1000 or lives == -1 then
        kept = math.ceil(over / 1000) + retention + math.floor(retention / 4)
        left, kept = format('%.0f', kept - math.floor(now / 1000)), format('%013.0f', kept)
        if stored then refused = refusal_of(redis.pcall('PEXPIRE', key, left)) end
      end
      refused = refused or refusal_of(redis.pcall('HSET', key, 'lock', 'leasehold/1 held ' .. us .. ' ' .. least .. ' '
        .. ARGV[at + 2] .. ' ' .. us .. ' ' .. kept .. ' 0000000000000000 ' .. ARGV[at] .. ' '
        .. ARGV[at + 1] .. ' ' .. epoch .. ' ' .. ARGV[at + 3]))
      if not refused and not stored then
        refused = refusal_of(redis.pcall('PEXPIRE', key, left))
        if refused then redis.call('HDEL', key, 'lock') end
      end
      answer = refused or least + 0
    end
  end
  answers[i] = answer or false
  -- What comes after it for the same lock waits for its turn, too.
  if not answer then rest[#rest + 1], rest[key] = i, true end
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
-- include: usual
-- Takes or renews a place behind an exclusive lease, for somebody who wants no permits and is not
-- preferred, where the key lives long enough already. Who joins brings no place along, and gets the
-- one behind the last in the line.
--
-- Returns the answer, or nil for the general way; then nothing is changed.
local function wait(key, at)
  local mode, channel, ticket, beat, window, behind, told, most =
    match(ARGV[at + 4], '^([xs]) 1 0 0 %d+ (%S+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+)$')
  if not mode then return end
  local token = ARGV[at]
  local got = redis.pcall('HMGET', key, 'lock', 'line', token, '#' .. told)
  local stored, line, name = got[1], got[2], got[3]
  local lease_ends = stored and usual_end(stored)
  if not lease_ends or sub(stored, 111, 142) == token then return end
  local ends = now + window * 1000
  if sub(stored, 80, 92) * 1000 < ends + retention * 1000 or redis.call('PTTL', key) == -1 then
    return
  end
  local least_end, start, other, head, tail, number
  if line then
    least_end, start, other, head, tail, number = usual_line(line)
    if not start or ends < least_end + 0 or ends < sub(line, 1, 16) + 0 then return end
  end
  local place, before, written
  if name then
    if not line or string.byte(name) ~= 35 then return end
    local text = name == '#' .. told and got[4] or redis.call('HMGET', key, name)[1] or ''
    local fixed = match(text, '^%d+ %d+ %d+( .*)$', 35)
    if not fixed then return end
    place = sub(name, 2) + 0
    if place < head + 0 or place > tail + 0 then return end
    before = math.min(place - head, number - 1)
    written = redis.pcall('HSET', key, name,
      us .. ' ' .. sub(text, 18, 34) .. beat .. ' ' .. window .. ' ' .. behind .. fixed)
  else
    if told ~= '-' or most ~= '-' and (line and number or 0) + 0 >= most + 0 then return end
    if line then
      place, before = other + 0, math.min(other - head, number + 0)
      if place <= tail + 0 or place > tail + $SLACK then return end
      name, number = '#' .. other, number + 1
      line = start .. format('%.0f', place + 1) .. ' ' .. number .. ' ' .. head .. '-' .. other .. '/'
        .. number
    else
      place, before = now + $BEHIND, 0
      local text, until_then = format('%.0f', place), format('%016.0f', ends)
      name = '#' .. text
      line = until_then .. ' ' .. until_then .. ' 0 0 ' .. format('%.0f', place + 1) .. ' 1 ' .. text
        .. '-' .. text .. '/1'
    end
    written = redis.pcall('HSET', key, name, us .. ' ' .. us .. ' ' .. beat .. ' ' .. window .. ' '
      .. behind .. ' ' .. mode .. ' 1 ' .. ARGV[at + 2] + 0 .. ' ' .. channel .. ' ' .. ticket .. ' ' .. token .. ' '
      .. ARGV[at + 3], token, name, 'line', line)
  end
  if refusal_of(written) then return end
  local left = lease_ends - now
  return {'waiting', before, place, left, 'x', 1, 0, sub(stored, 158, 161) + 0,
    sub(stored, 35, 50) + 0, math.max(now - sub(stored, 63, 78), 0), left, sub(stored, 163)}
end
local general = {}
local function go_on(i) general[#general + 1], general[KEYS[i]] = i, true end
each(rest, 1, function(i)
  local key = KEYS[i]
  local answer = not general[key] and wait(key, 5 * i - 1)
  answers[i] = answer or false
  if not answer then go_on(i) end
  return answer
end, go_on)
if #general == 0 then return answers end
local frees = false
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
  local wanted = wanted_at(5 * i - 1)
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
