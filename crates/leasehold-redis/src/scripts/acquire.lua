-- Takes locks, takes or renews a place in their lines, or says what stands in the way: each lock
-- for itself. Repeating it with the same tokens counts nothing twice.
--
-- KEYS  i       the i-th lock
-- ARGV  1 to 4, and 4+i for the i-th lock: see asked.lua; or where ARGV[4] is asked of all of several locks, 5:
--       their tokens, one behind the other. What is asked of a lock has, separated by blanks:
--       - for an exclusive hold at once or not at all; = to wait in line for an exclusive or shared hold of one
--       that is not preferred and does not close the lock; else +
--       ttl, ms, thirteen digits
--       how many fences to reserve, ten digits
--       holds, owner and metadata, the last two without a blank, and maybe empty
--       and after a =, in the place of the last two: place told before, sixteen digits, and how many may wait at most,
--       ten, or dashes; window, thirteen; heartbeat, how many more wait behind it, and fences to reserve, ten each;
--       mode; 1; ticket, twenty; channel; one hold, owner and metadata
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
--         ticket, repeated in messages, twenty digits
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
--   now#place state     a text: waiting in a plain line; behind a line feed comes the record
--   wrong-kind limit    in use with this limit, or 0 as a lock
--   too-many-permits
--   queue-full waiters
--   foreign             what stands at the key has none of a lock's fields; left as it is
--   damaged             it is a lock's record that can't be read; left as it is
--   version n           it is one of another version; left as it is
--   failed error        the server refused what this lock needs; left as it is
--   stopped error       of several locks: what was asked of this one was not done to the end
--   later               of several locks: the call took long already; nothing was done
--
-- Atomic: one script. It reads and writes its keys only.
-- include: now
local keys, argv, try, find, number = KEYS, ARGV, redis.pcall, string.find, #KEYS
local answers, rest, found
local ahead, done = 4, least == us and now or least + 0
local packed = number > 1 and #argv == ahead + 1 and argv[ahead + 1]
-- How begins what is asked of those that say nothing else.
local shared = sub(argv[ahead], 1, 1)
-- What was granted last, and what it takes to grant it.
local usual, about, tail, kept, needed, longer, left
-- The last lock's token, what is asked of it, and whether it has no place yet.
local token, what, is_new
-- How many were looked at; one that was never used counts twice. All after the last are put off, so that
-- what is asked of one lock is done in its order.
local looked = 0
-- The last that was taken along with one before it.
local along = 0
-- A lock that was never used, or is free, is taken without looking any further. No function is made
-- for that: Lua would make it anew in each call.
for i = 1, number do
  if i <= along then
    -- Done.
  elseif looked >= $FREE then
    answers = answers or {}
    answers[i] = {'later'}
  else
    looked = looked + 1
    local key, asked = keys[i], packed and sub(packed, 32 * i - 31, 32 * i) or argv[i + ahead]
    local kind = shared
    token, what = asked, argv[ahead]
    if #asked > 32 then
      token, what = sub(asked, 1, 32), sub(asked, 33)
      kind = sub(what, 1, 1)
    end
    local state, written
    -- What comes after one that is left, for the same lock, waits for its turn too.
    if kind ~= '+' and not (rest and rest[key]) then
      local waits, got = kind == '=', nil
      if waits then
        is_new = find(what, '---------------- ----------', 17, true) == 17
        if is_new then
          got = try('HMGET', key, 'state', 'lock', token)
        else
          got = try('HMGET', key, 'state', 'lock', token, '#' .. sub(what, 17, 32))
        end
        state = got.err and got or got[1]
        if number == 1 then
          found = got
        else
          found = found or {}
          found[i] = got
        end
      else
        state = try('HGET', key, 'state')
      end
      local free = state and #state == 68 and sub(state, 48, 63) <= least
      if (free or not state) and (not waits or sub(what, 92, 92) == 'x' and not got[3]) then
        if what ~= usual then
          local block = waits and sub(what, 81, 91) or sub(what, 17, 27)
          local ends, following = now + sub(what, 3, 15) * 1000, done + block
          local low, its_low = following % 100000000, ends % 100000000
          local up = (ends > following and ends or following) + 999
          kept = (up - up % 1000) / 1000 + retention
          usual = what
          about = 'leasehold/1 ' .. block .. us .. ' ' .. sub(what, waits and find(what, ' ', 117, true) + 1 or 28)
          tail = format(' %08d%08d %s %08d%08d', (following - low) / 100000000, low, epoch,
            (ends - its_low) / 100000000, its_low)
          needed, longer = number > 1 and kept .. '', nil
        end
        local lives = free and (needed and state >= needed or not needed and sub(state, 1, 13) + 0 >= kept)
        if not (lives or longer) then
          local lasts = kept + math.floor(retention / 4)
          longer, left = format('%013.0f ', lasts), format('%.0f', lasts - math.floor(now / 1000))
        end
        if lives then
          written = try('HSET', key, 'state', sub(state, 1, 14) .. token .. tail, 'lock', about)
          -- Most that follow differ in their tokens alone. The first that is otherwise ends this.
          if packed and written == 0 and not (waits or rest) then
            for j = i + 1, number - math.max(looked - i + number - $FREE, 0) do
              key = keys[j]
              state = try('HGET', key, 'state')
              if not state or #state ~= 68 or state < needed or sub(state, 48, 63) > least then break end
              written = try('HSET', key, 'state', sub(state, 1, 14) .. sub(packed, 32 * j - 31, 32 * j) .. tail,
                'lock', about)
              if written ~= 0 and type(written) ~= 'number' then break end
              along = j
            end
            looked, written = looked + math.max(along - i, 0), 0
          end
        elseif free then
          written = type(try('PEXPIRE', key, left)) == 'number'
            and try('HSET', key, 'state', longer .. token .. tail, 'lock', about)
        elseif try('PTTL', key) == -2 then
          looked = looked + 1
          written = try('HSET', key, 'state', longer .. token .. tail, 'lock', about)
          if type(written) == 'number' and type(try('PEXPIRE', key, left)) ~= 'number' then
            try('HDEL', key, 'state', 'lock')
            written = nil
          end
        end
      end
    end
    -- include: settle
  end
end
-- include: settled
local general, room = nil, $ROOM
-- Takes or renews a place in a plain line, where the key lives long enough already: docs/wire.md has the positions
-- by which it reads. Whatever is otherwise is left to the general way, and nothing is changed. What is answered is
-- as it is stored, since the client has more time to take it apart.
for n = 1, number == 1 and 1 or #rest do
  local i, answer, got = 1, nil, found
  if number > 1 then
    i = rest[n]
    got = found and found[i]
    token, what = argv[i + 4], argv[4]
    if #token > 32 then token, what = sub(token, 1, 32), sub(token, 33) end
    is_new = find(what, '---------------- ----------', 17, true) == 17
  end
  local key = keys[i]
  repeat
    -- Only for one that would wait was anything got. What comes after one that is left, for the same lock, waits for
    -- its turn too.
    if not got or room < 1 or general and general[key] then break end
    local state, name = got[1], got[3]
    local length = state and #state or 0
    if not got[2] or length ~= 85 and length < 152 then break end
    local lease_ends, window = sub(state, 70, 85), sub(what, 45, 57)
    -- Where no exclusive lease ends there is a word, and letters are above digits.
    if lease_ends <= us or lease_ends > ':' or find(state, token, 15, true) == 15 then break end
    local ends = now + window * 1000
    if sub(state, 1, 13) * 1000 < ends + retention * 1000 then break end
    local soonest = length > 85 and sub(state, 87, 102)
    if soonest and (soonest <= us or ends < soonest + 0 or sub(state, 138, 150) ~= window) then break end
    local written
    if not is_new then
      -- One that brings a place that it no longer has, or that may be refused, gets it in the general way.
      local place, text = sub(what, 17, 32), got[4]
      if length == 85 or name ~= '#' .. place or not text or #text < 142 then break end
      if place < sub(state, 104, 119) or place >= sub(state, 121, 136) then break end
      written = try('HSET', key, name, us .. ' ' .. sub(what, 45, 79) .. sub(text, 53))
    else
      if name then break end
      if length == 85 then
        local place = now + $BEHIND
        local low, its_low, next_low = ends % 100000000, place % 100000000, (place + 1) % 100000000
        local head = format('%08d%08d', (place - its_low) / 100000000, its_low)
        name = '#' .. head
        state = state .. format(' %08d%08d ', (ends - low) / 100000000, low) .. head
          .. format(' %08d%08d ', (place + 1 - next_low) / 100000000, next_low) .. window .. ' 0'
      else
        local place = sub(state, 121, 136)
        local following = place + 1
        local low = following % 100000000
        name = '#' .. place
        state = sub(state, 1, 120) .. format('%08d%08d', (following - low) / 100000000, low) .. sub(state, 137)
      end
      written = try('HSET', key, name, us .. ' ' .. sub(what, 45, 79) .. ' ' .. us .. ' ' .. token .. sub(what, 80),
        token, name, 'state', state)
    end
    if written ~= 2 and type(written) ~= 'number' then break end
    answer = us .. name .. ' ' .. state .. '\n' .. got[2]
  until true
  if answer then
    if number == 1 then return answer end
    answers[i], room = answer, room - 1
  elseif room < 1 and number > 1 then
    answers[i] = {'later'}
  else
    general = general or {}
    general[#general + 1], general[key] = i, true
  end
end
if not general then return answers end
answers = answers or {}
local frees = false
-- include: asked
-- include: each
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
-- include: take
-- What a request of a waiter says anew each time, and when it came.
local function heard(wanted)
  return us .. format(' %013.0f %010.0f %010.0f', wanted.window, wanted.beat, wanted.behind)
end
-- Takes in how long one of the waiters has its place kept; a plain line has one length for all.
local function agree(lock, window)
  if lock.waiters == 0 then lock.window = window end
  if lock.window ~= window then lock.window, lock.line_dirty = 0, true end
end
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
  put(lock, field_of(place), heard(wanted) .. ' ' .. us .. ' ' .. wanted.token
    .. format(' %010.0f ', wanted.count) .. wanted.mode .. ' ' .. digits(wanted.permits) .. ' ' .. wanted.ticket .. ' '
    .. wanted.channel .. ' 1' .. match(wanted.profile, '^%d+(.*)$'))
  agree(lock, wanted.window)
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
      local fixed = match(get(lock, field_of(place)), '^%d+ %d+ %d+ %d+( .*)$')
      put(lock, field_of(place), heard(wanted) .. fixed)
      agree(lock, wanted.window)
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
