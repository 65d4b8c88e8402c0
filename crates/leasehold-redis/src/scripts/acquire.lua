-- Takes a lock, takes or renews a place in its line, or says what stands in the way.
-- Repeating it with the same token counts nothing twice.
--
-- KEYS  1  the lock's record
--       2  its crowd: shared holders, holders of permits, and those who wait
--       3  the order of the crowd
-- ARGV  1  token, 32 hexadecimal digits
--       2  ttl, ms
--       3  fail-over epoch; 0 where there is none
--       4  how long the record is kept, ms: ttl + fence retention
--       5  how many fences to reserve
--       6  holds, owner and metadata, separated by a space, each without one
--      and, unless the lock is wanted exclusively and at once:
--       7  mode: x exclusive, s shared, p permits
--       8  permits wanted (1 for x and s)
--       9  all permits of the semaphore (0 for x and s)
--      and, to wait in line:
--      10  channel to tell of the grant
--      11  ticket, repeated in messages
--      12  heartbeat, counted up with each request
--      13  window, ms: how long the place is kept, and a lease handed over runs, from now
--      14  place told before, or an empty string
--      15  how many may wait at most, or an empty string
--      (all empty strings for somebody who doesn't wait but has one of these)
--      16  1 to go before all who don't, else 0
--      17  how long to close the lock with an immediate grant, µs; 0 for not at all
--
-- Returns one of
--   fence               an integer: granted; sequence of its first fence, in the epoch of ARGV[3]
--   granted epoch fence
--   already epoch fence count holds
--   busy free_in [mode permits limit epoch fence held left profile]   times in µs
--   waiting position place free_in [mode … profile]
--   wrong-kind limit    in use with this limit, or 0 as a lock
--   too-many-permits
--   queue-full waiters
-- or the error LEASEHOLDFOREIGN, LEASEHOLDVERSION or WRONGTYPE, having changed nothing.
--
-- Atomic: one script. It reads and writes its keys only, which share a hash tag, hence a slot.
-- include: now
local us = time[1] .. string.sub('00000' .. time[2], -6)
local stored = redis.call('GET', KEYS[1])
local mode = ARGV[7] or 'x'
if mode == 'x' and not ARGV[16] then
  -- A lock that was never used, or is free, is taken without looking any further.
  local last_place
  if not stored then
    last_place = '0000000000000000'
  else
    local shape = string.sub(stored, 1, 17)
    if shape == 'leasehold/1 free ' then
      local epoch, first, count = string.match(stored, '^%d+ (%d+) (%d+) (%d+)', 91)
      if epoch == ARGV[3] and first + count <= now then last_place = string.sub(stored, 68, 83) end
    elseif ARGV[15] == '' and ARGV[14] == '' and shape == 'leasehold/1 held '
      and string.sub(stored, 18, 49) ~= ARGV[1] then
      -- A newcomer comes last in a line in which everybody's place runs on.
      local since, place, soonest, latest, ttl, epoch, first, granted, profile = string.match(
        stored, '^(%d+) (%d+) (%d+) (%d+) 0 (%d+) (%d+) (%d+) %d+ (%d+) (.*)$', 51)
      local left, ends = since and since + ttl * 1000 - now, now + ARGV[13] * 1000
      if since and left > 0 and soonest + 0 > now and soonest + 0 <= ends
        and latest + 0 >= ends and not redis.call('HGET', KEYS[2], ARGV[1]) then
        local arrival = us
        if place >= us then arrival = string.format('%016.0f', place + 1) end
        -- Behind all who are preferred, and those who came before: see Place in docs/wire.md.
        local mine = string.format('%.0f', arrival + 4503599627370496)
        local position = redis.call('ZCARD', KEYS[3]) / 2
        redis.call('ZADD', KEYS[3], mine, ARGV[1], string.format('%.0f', -ends), 'till ' .. ARGV[1])
        redis.call('HSET', KEYS[2], ARGV[1],
          'waits x 1 ' .. ARGV[5] .. ' ' .. ARGV[10] .. ' ' .. ARGV[11] .. ' ' .. ARGV[12] .. ' '
            .. ARGV[13] .. ' ' .. us .. ' ' .. us .. ' ' .. ARGV[6])
        redis.call('SETRANGE', KEYS[1], '67', arrival)
        if position == 0 then
          local keep = string.format('%.0f', math.ceil((latest - now) / 1000) + ARGV[4] - ARGV[2])
          redis.call('PEXPIRE', KEYS[2], keep)
          redis.call('PEXPIRE', KEYS[3], keep)
        end
        return {'waiting', position, mine + 0, left, 'x', 1, 0, epoch + 0, first + 0,
          math.max(now - granted, 0), left, profile}
      end
    end
  end
  if last_place then
    redis.call('SET', KEYS[1],
      'leasehold/1 held ' .. ARGV[1] .. ' ' .. us .. ' ' .. last_place .. ' 0 0 0 ' .. ARGV[2] .. ' '
        .. ARGV[3] .. ' ' .. us .. ' ' .. ARGV[5] .. ' ' .. us .. ' ' .. ARGV[6],
      'PX', ARGV[4])
    return now
  end
end
local main, crowd, order, token, floor_epoch = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[3] + 0
local asking, wanted_ttl, retention = token, ARGV[2] + 0, ARGV[4] - ARGV[2]
local permits, wanted_limit, channel = ARGV[8] or '1', (ARGV[9] or 0) + 0, ARGV[10]
local wanted_profile, block = ARGV[6], ARGV[5] + 0
local preferred, close_for = ARGV[16] == '1', (ARGV[17] or 0) + 0
if channel == '' then channel = nil end
-- include: load
if bad then return redis.error_reply(bad) end
local head, head_before, head_channel, head_ticket, head_seen, head_window
local free_in, next_mode, next_permits, next_epoch, next_first, next_granted, next_expires
local next_profile
local wanted_place = channel and ARGV[14] ~= '' and ARGV[14] + 0
local window = channel and ARGV[13] + 0
local ends = channel and now + window * 1000
if channel and latest > 0 then
  -- A waiter is heard before the line is served, or it would be passed over while it asks.
  local fixed, arrived, label = string.match(redis.call('HGET', crowd, token) or '',
    '^(waits %l %d+ %d+ %S+ %d+) %d+ %d+ %d+ (%d+)( .*)$')
  if fixed and redis.call('ZSCORE', order, token) then
    redis.call('ZADD', order, string.format('%.0f', -ends), 'till ' .. token)
    redis.call('HSET', crowd, token, fixed .. ' ' .. ARGV[12] .. ' ' .. ARGV[13] .. ' ' .. us .. ' '
      .. arrived .. label)
    -- include: will_end
    dirty = true
  end
end
-- include: settle
local answer
-- include: find_mine
-- include: refuse
-- include: find_free
if answer then
  -- Refused.
elseif mine then
  -- include: already
elseif waits then
  answer = {'waiting', waits + 0}
elseif free then
  -- include: grant
  answer = {'granted', epoch, first}
elseif not channel then
  answer = {'busy'}
else
  local waiters = 0
  if head then
    if now >= soonest then
      for _, gone in ipairs(redis.call('ZRANGEBYSCORE', order, string.format('%.0f', -now), '(0')) do
        local who = string.sub(gone, 6)
        redis.call('ZREM', order, gone, who)
        redis.call('HDEL', crowd, who)
      end
      soonest, dirty = -redis.call('ZREVRANGEBYSCORE', order, '(0', '-4503599627370496',
        'WITHSCORES', 'LIMIT', '0', '1')[2], true
    end
    waiters = redis.call('ZCOUNT', order, '0', '+inf')
  end
  if not wanted_place and ARGV[15] ~= '' and waiters >= ARGV[15] + 0 then
    answer = {'queue-full', waiters}
  else
    -- include: begin_crowd
    local its_place = wanted_place
    if its_place and waiters > 0 then
      local its = string.format('%.0f', its_place)
      if redis.call('ZCOUNT', order, its, its) > 0 then its_place = nil end
    end
    if not its_place then
      its_place = math.max(place + 1, now)
      if not preferred then its_place = its_place + 4503599627370496 end
    end
    place = math.max(place, its_place % 4503599627370496)
    if head and its_place < redis.call('ZSCORE', order, head) + 0 then head = nil end
    redis.call('ZADD', order, string.format('%.0f', its_place), token,
      string.format('%.0f', -ends), 'till ' .. token)
    redis.call('HSET', crowd, token, 'waits ' .. mode .. ' ' .. permits .. ' ' .. ARGV[5] .. ' '
      .. channel .. ' ' .. ARGV[11] .. ' ' .. ARGV[12] .. ' ' .. ARGV[13] .. ' ' .. us .. ' ' .. us
      .. ' ' .. ARGV[6])
    -- include: will_end
    limit, dirty = wanted_limit, true
    answer = {'waiting', its_place}
  end
end
-- include: tell_first
if answer[1] == 'busy' or answer[1] == 'waiting' then
  if not free_in then
    -- include: next_free
  end
  if answer[1] == 'waiting' then
    local mine = answer[2]
    answer = {'waiting', redis.call('ZCOUNT', order, '0', string.format('(%.0f', mine)), mine}
  end
  -- include: add_contention
end
-- include: save
return answer
