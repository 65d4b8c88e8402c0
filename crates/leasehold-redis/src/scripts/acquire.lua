-- Takes a lock, takes or renews a place in its line, or says what stands in the way.
-- Repeating it with the same token counts nothing twice.
--
-- KEYS  1  the lock's record
--       2  its crowd: shared holders, holders of permits, and the line
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
local stored = redis.call('GET', KEYS[1])
local mode = ARGV[7] or 'x'
if mode == 'x' then
  -- A lock that was never used, or is free, is taken without looking any further.
  local last_place
  if not stored then
    last_place = '0'
  elseif string.sub(stored, 1, 17) == 'leasehold/1 free ' then
    local epoch, first, count
    epoch, first, count, last_place =
      string.match(stored, '^%d+ 0 0 (%d+) (%d+) (%d+) (%d+)', 68)
    if epoch ~= ARGV[3] or first + count > now then last_place = nil end
  end
  if last_place then
    local us = time[1] .. string.sub('00000' .. time[2], -6)
    redis.call('SET', KEYS[1],
      'leasehold/1 held ' .. ARGV[1] .. ' ' .. us .. ' ' .. ARGV[2] .. ' 0 0 ' .. ARGV[3] .. ' '
        .. us .. ' ' .. ARGV[5] .. ' ' .. last_place .. ' ' .. us .. ' ' .. ARGV[6],
      'PX', ARGV[4])
    return now
  end
end
local main, crowd, token, floor_epoch = KEYS[1], KEYS[2], ARGV[1], ARGV[3] + 0
local asking, wanted_ttl, retention = token, ARGV[2] + 0, ARGV[4] - ARGV[2]
local permits, wanted_limit, channel = ARGV[8] or '1', (ARGV[9] or 0) + 0, ARGV[10]
-- include: load
if bad then return redis.error_reply(bad) end
local head, head_before, head_place, head_channel, head_ticket, head_seen, head_window
local free_in, next_mode, next_permits, next_epoch, next_first, next_granted, next_expires
local next_profile
local wanted_place = channel and ARGV[14] ~= '' and string.format('%016.0f', ARGV[14])
if channel and line_until > 0 then
  -- A waiter is heard before the line is served, or it would be passed over while it asks.
  local waits = redis.call('ZRANGEBYLEX', crowd, '[who ' .. token, '(who ' .. token .. '!')[1]
  local fixed, its_place, window, block, arrived, seen, label = string.match(waits or '',
    '^(who %S+ waits %l %d+ (%d+) %S+ %d+) %d+ (%d+) (%d+) (%d+) (%d+) (.*)$')
  if fixed then
    redis.call('ZREM', crowd, waits,
      string.format('till %016.0f %s %s', seen + window * 1000, its_place, token))
    redis.call('ZADD', crowd,
      0, string.format('till %016.0f %s %s', now + ARGV[13] * 1000, its_place, token),
      0, string.format('%s %s %s %s %s %.0f %s', fixed, ARGV[12], ARGV[13], block, arrived, now,
        label))
    dirty = true
  end
end
-- include: settle
local answer
local entry
if taken > 0 or line_until > 0 then
  entry = redis.call('ZRANGEBYLEX', crowd, '[who ' .. token, '(who ' .. token .. '!')[1]
end
if holder or taken > 0 or line_until > 0 or closed_until > 0 then
  if limit ~= wanted_limit then answer = {'wrong-kind', limit} end
end
if not answer and mode == 'p' and permits + 0 > wanted_limit then answer = {'too-many-permits'} end
if answer then
  -- Refused.
elseif holder == token then
  if now + wanted_ttl * 1000 > since + ttl * 1000 then since, ttl = now, wanted_ttl end
  local holds = string.match(ARGV[6], '^%d+')
  profile, dirty = string.gsub(profile, '^%d+', holds, 1), true
  answer = {'already', epoch, first, count, holds + 0}
elseif entry and string.find(entry, ' holds ', 1, true) == 37 then
  local held_mode, held, expires, rest, e, f, n, label =
    string.match(entry, '^who %S+ holds (%l) (%d+) (%d+) (%d+ (%d+) (%d+) (%d+)) %d+ (.*)$')
  local ends = string.format('%016.0f', math.max(expires + 0, now + wanted_ttl * 1000))
  local holds = string.match(ARGV[6], '^%d+')
  local tail = string.format(' %04.0f %016.0f %s %s', e, f, held, token)
  redis.call('ZREM', crowd, entry, 'end ' .. string.format('%016.0f', expires) .. tail)
  redis.call('ZADD', crowd, 0, 'end ' .. ends .. tail,
    0, string.format('who %s holds %s %s %.0f %s %s %s', token, held_mode, held, ends, rest, holds,
      label))
  dirty = true
  answer = {'already', e + 0, f + 0, n + 0, holds + 0}
elseif entry then
  answer = {'waiting', string.match(entry, '^who %S+ waits %l %d+ (%d+)')}
elseif closed_until == 0 and not holder and (not head or wanted_place and wanted_place < head_place)
  and (mode == 's' or mode == 'x'
  and taken == 0 or mode == 'p' and taken + permits <= wanted_limit) then
  if epoch < floor_epoch then epoch = floor_epoch end
  first, count, released = math.max(first + count, now), ARGV[5] + 0, nil
  limit, dirty = wanted_limit, true
  if mode == 'x' then
    holder, since, ttl, profile = token, now, wanted_ttl, ARGV[6]
    granted = string.format('%.0f', now)
  else
    -- What stands in a crowd that nobody refers to was left by a record that is gone.
    if taken == 0 and not head then redis.call('ZREMRANGEBYLEX', crowd, '-', '+') end
    taken = taken + permits
    redis.call('ZADD', crowd,
      0, string.format('end %016.0f %04.0f %016.0f %s %s', now + wanted_ttl * 1000, epoch, first,
        permits, token),
      0, string.format('who %s holds %s %s %.0f %.0f %.0f %.0f %.0f %s', token, mode, permits,
        now + wanted_ttl * 1000, now, epoch, first, count, ARGV[6]))
  end
  answer = {'granted', epoch, first}
elseif not channel then
  answer = {'busy'}
else
  local waiters = 0
  if head then
    while true do
      local gone = redis.call('ZRANGEBYLEX', crowd, '[till ',
        string.format('(till %016.0f!', now), 'LIMIT', 0, 1)[1]
      if not gone then break end
      local its_place, who = string.match(gone, '^till %d+ (%d+) (%S+)$')
      redis.call('ZREM', crowd, gone, 'line ' .. its_place .. ' ' .. who)
      redis.call('ZREMRANGEBYLEX', crowd, '[who ' .. who, '(who ' .. who .. '!')
      dirty = true
    end
    waiters = redis.call('ZLEXCOUNT', crowd, '[line ', '(line!')
  end
  if not wanted_place and ARGV[15] ~= '' and waiters >= ARGV[15] + 0 then
    answer = {'queue-full', waiters}
  else
    if not head and taken == 0 then redis.call('ZREMRANGEBYLEX', crowd, '-', '+') end
    local mine = wanted_place
    if not mine or waiters > 0
      and redis.call('ZLEXCOUNT', crowd, '[line ' .. mine, '(line ' .. mine .. '!') > 0 then
      mine = string.format('%016.0f', math.max(place + 1, now))
    end
    place = math.max(place, mine + 0)
    redis.call('ZADD', crowd,
      0, 'line ' .. mine .. ' ' .. token,
      0, string.format('till %016.0f %s %s', now + ARGV[13] * 1000, mine, token),
      0, string.format('who %s waits %s %s %s %s %s %s %s %s %.0f %.0f %s', token, mode, permits,
        mine, channel, ARGV[11], ARGV[12], ARGV[13], ARGV[5], now, now,
        string.match(ARGV[6], '^%d+ (.*)$')))
    limit, line_until, dirty = wanted_limit, now, true
    answer = {'waiting', mine}
    if head and mine < head_place then head = nil end
  end
end
-- include: tell_first
if answer[1] == 'busy' or answer[1] == 'waiting' then
  if not free_in then
    -- include: next_free
  end
  if answer[1] == 'waiting' then
    local mine = answer[2]
    answer = {'waiting', redis.call('ZLEXCOUNT', crowd, '[line ', '(line ' .. mine), mine + 0}
  end
  local at = #answer
  answer[at + 1] = free_in
  if next_mode then
    answer[at + 2], answer[at + 3], answer[at + 4] = next_mode, next_permits + 0, limit
    answer[at + 5], answer[at + 6] = next_epoch + 0, next_first + 0
    answer[at + 7], answer[at + 8] = math.max(now - next_granted, 0), next_expires - now
    answer[at + 9] = next_profile
  end
end
-- include: save
return answer
