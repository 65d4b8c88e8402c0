-- Lets leases run on: never creates one, never takes one away.
--
-- KEYS  3i-2  record of the i-th lock
--       3i-1  its crowd
--       3i    the order of the crowd
-- ARGV  1     fail-over epoch
--       2     fence retention, ms
--      and for the i-th lock, from 5i-2 on:
--        token
--        epoch of the lease's fences
--        sequence of the last of them; an exclusive lease takes over what is above all issued
--        ttl, ms, from now
--        1 when the lease may end earlier than it would have, else 0
--
-- Returns for the i-th lock, as one array, an integer:
--   1  renewed
--   2  late      it had run out, and nobody has held the lock since; it stays ended
--   3  not held
--   4  what stands at the key is not a record of leasehold; left as it is
--   5  it is one of another version; left as it is
--   6  renewed, and its holder is asked to let go
--
-- Atomic for each lock. Keys of several slots must not be given to a cluster. Works at the server's
-- memory limit.
-- include: now
local us = time[1] .. string.sub('00000' .. time[2], -6)
local floor_epoch, retention = ARGV[1] + 0, ARGV[2] + 0
local answers = {}
for i = 1, #KEYS / 3 do
  local main, crowd, order, at = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i], 5 * i - 2
  local token, shorten = ARGV[at], ARGV[at + 4] == '1'
  local wanted_ttl = ARGV[at + 3] + 0
  local answer
  local stored = redis.pcall('GET', main)
  if type(stored) == 'table' then
    answer = 4
  elseif not stored then
    answer = 3
  elseif string.sub(stored, 1, 49) == 'leasehold/1 held ' .. token then
    -- Nobody waits, nothing is closed, and the ttl stays: only the time of the renewal changes.
    local since, ttl, epoch, first, count =
      string.match(stored, '^(%d+) %d+ 0 0 0 (%d+) (%d+) (%d+) (%d+)', 51)
    if ttl == ARGV[at + 3] and since + ttl * 1000 > now
      and epoch == ARGV[at + 1] and first + count > ARGV[at + 2] + 0
      and first + count <= now + retention * 1000 then
      answer = 1
      if us > since or shorten then
        redis.call('PEXPIRE', main, wanted_ttl + retention)
        redis.call('SETRANGE', main, '50', us)
      end
    end
  end
  if not answer then
    local asking
    -- include: load
    local head, head_before, head_channel, head_ticket, head_seen, head_window
    local free_in, next_mode, next_permits, next_epoch, next_first, next_granted, next_expires
    local next_profile
    if bad then
      answer = string.find(bad, '^LEASEHOLDFOREIGN') and 4 or 5
    else
      -- include: make_room
      -- include: settle
      -- include: tell_first
      local ends = now + wanted_ttl * 1000
      local entry
      if taken > 0 then entry = redis.call('HGET', crowd, token) end
      if holder == token then
        if shorten or ends > since + ttl * 1000 then since, ttl, dirty = now, wanted_ttl, true end
        local e, last = ARGV[at + 1] + 0, ARGV[at + 2] + 0
        if last >= first + count or last == first + count - 1 and e > epoch then
          epoch, first, dirty = e, last - count + 1, true
        end
        answer = string.find(profile, '^%d+ [^ ]* [^ ]* ') and 6 or 1
      elseif entry and string.byte(entry) == 104 then
        local before, permits, expires, after, e, f = string.match(entry,
          '^(holds %l (%d+) )(%d+)( %d+ (%d+) (%d+) .*)$')
        if shorten or ends > expires + 0 then
          redis.call('ZADD', order, string.format('%.0f', ends - 9007199254740992),
            string.format('%016.0f %04.0f %s %s', f, e, permits, token))
          redis.call('HSET', crowd, token, before .. string.format('%.0f', ends) .. after)
          dirty = true
        end
        answer = string.find(after, '^ %d+ %d+ %d+ %d+ %d+ [^ ]* [^ ]* ') and 6 or 1
      elseif epoch == ARGV[at + 1] + 0 and first + count - 1 == ARGV[at + 2] + 0 then
        answer = 2
      else
        answer = 3
      end
      -- include: save
    end
  end
  answers[i] = answer
end
return answers
