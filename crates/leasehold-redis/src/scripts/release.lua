-- Ends a lease, or sets how many of its holds remain. Repeating it after it ended the lease gives
-- the same answer until the lock is granted again.
--
-- KEYS  1  the lock's record
--       2  its crowd
--       3  the order of the crowd
-- ARGV  1  token
--       2  fence retention, ms
--       3  fail-over epoch
--       4  epoch of the lease's fences
--       5  sequence of the last of them
--      and, unless all are 0:
--       6  how many holds are to remain; 0 ends the lease
--       7  cool-down, µs; 0 for none
--       8  1 to open the lock again that was closed for a while, else 0
--
-- Returns one of
--   1                  an integer: released
--   released
--   still-held holds
--   late               it had run out, and nobody has held the lock since
--   not-held
-- or an error as acquire does.
--
-- Atomic: one script, three keys of one slot. Works at the server's memory limit.
-- include: now
local stored = redis.call('GET', KEYS[1])
if stored and not ARGV[6]
  and string.find(stored, 'leasehold/1 held ' .. ARGV[1], 1, true) == 1 then
  if string.byte(stored, 85) == 48 then
    -- Nobody waits and nothing is closed: the record stays as it is but for one word, and lives for
    -- as long as it would have, which is the rest of the lease and the retention.
    local ttl = string.match(stored, '^ 0 0 0 (%d+) ', 84)
    if ttl and string.sub(stored, 51, 66) + ttl * 1000 > now and ttl + 0 <= ARGV[2] + 0 then
      local written = redis.pcall('SETRANGE', KEYS[1], '12', 'free')
      if type(written) == 'number' then return 1 end
      -- At the memory limit the way below is open.
    end
  else
    -- Everybody's place runs on, and the first in line wants the lock as it was held: it has it.
    local since, soonest, latest, ttl, epoch, first, count =
      string.match(stored, '^(%d+) %d+ (%d+) (%d+) 0 (%d+) (%d+) (%d+) (%d+)', 51)
    if since and since + ttl * 1000 > now and soonest + 0 > now then
      local head = redis.call('ZRANGEBYSCORE', KEYS[3], '0', '+inf', 'LIMIT', '0', '1')[1]
      local block, channel, ticket, beat, window, seen, label = string.match(
        head and redis.call('HGET', KEYS[2], head) or '',
        '^waits x 1 (%d+) (%S+) (%d+) (%d+) (%d+) (%d+) %d+ %d+ (.*)$')
      local left = block and seen + window * 1000 - now
      local us, after = time[1] .. string.sub('00000' .. time[2], -6), first + count
      -- The next in line need not be told when this lease ends, since its heartbeat comes before
      -- that, whatever its window: that does not reach beyond the latest end of a place. And the
      -- record lives on beyond that end, so it need not be told to.
      if left and 2 * left >= window * 1000 and 3 * left >= latest - now
        and epoch + 0 >= ARGV[3] + 0 and after <= now and now + block <= latest + 0 then
        redis.call('ZREM', KEYS[3], head, 'till ' .. head)
        redis.call('HDEL', KEYS[2], head)
        redis.call('SET', KEYS[1],
          'leasehold/1 held ' .. head .. ' ' .. seen .. string.sub(stored, 67, 84) .. soonest .. ' '
            .. latest .. ' 0 ' .. window .. ' ' .. epoch .. ' ' .. us .. ' ' .. block .. ' ' .. us
            .. ' 1 ' .. label,
          'KEEPTTL')
        redis.pcall('PUBLISH', channel,
          'granted ' .. ticket .. ' ' .. beat .. ' ' .. epoch .. ' ' .. us .. ' ' .. block)
        return 1
      end
    end
  end
end
local main, crowd, order, token, floor_epoch = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[3] + 0
local asking, retention, remaining = nil, ARGV[2] + 0, (ARGV[6] or 0) + 0
local cooldown = (ARGV[7] or 0) + 0
-- include: load
if bad then return redis.error_reply(bad) end
local head, head_before, head_channel, head_ticket, head_seen, head_window
local free_in, next_mode, next_permits, next_epoch, next_first, next_granted, next_expires
local next_profile
-- include: make_room
-- include: settle
local answer
local entry
if taken > 0 then
  entry = redis.call('HGET', crowd, token)
  if entry and string.byte(entry) ~= 104 then entry = nil end
end
local ended = false
if holder == token or entry then
  if remaining > 0 then
    if entry then
      local before, after = string.match(entry, '^(holds %l %d+ %d+ %d+ %d+ %d+ %d+ )%d+( .*)$')
      redis.call('HSET', crowd, token, before .. ARGV[6] .. after)
    else
      profile = string.gsub(profile, '^%d+', ARGV[6], 1)
    end
    dirty, answer = true, {'still-held', remaining}
  else
    -- include: drop_hold
    ended, answer = true, {'released'}
  end
elseif released == token then
  answer = {'released'}
elseif epoch == ARGV[4] + 0 and first + count - 1 == ARGV[5] + 0 then
  ended, answer = true, {'late'}
else
  answer = {'not-held'}
end
local closed_before = closed_until
if ended and ARGV[8] == '1' and closed_until > 0 then closed_until, dirty = 0, true end
if ended and cooldown > 0 and now + cooldown > closed_until then
  closed_until, dirty = now + cooldown, true
end
-- A head that reckons with the end of a lease has to reckon with the cool-down now.
if closed_until > closed_before then head_before = false end
-- include: settle
-- include: tell_first
-- include: save
return answer
