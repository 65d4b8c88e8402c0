-- Changes the mode in which a lease is held, at once or not at all; its end stays what it is.
--
-- KEYS  1  the lock's record
--       2  its crowd
--       3  the order of the crowd
-- ARGV  1  token
--       2  fence retention, ms
--       3  fail-over epoch
--       4  epoch of the lease's fences
--       5  sequence of the last of them
--       6  mode, 7 permits and 8 limit, as for acquire
--       9  how many fences to reserve where new ones are issued
--
-- Returns one of
--   converted epoch fence count
--   busy others          shared holders, or permits that others have
--   wrong-kind limit
--   too-many-permits
--   late                 it had run out, and nobody has held the lock since
--   not-held
-- or an error as acquire does.
--
-- Atomic: one script, three keys of one slot.
-- include: now
local stored = redis.call('GET', KEYS[1])
local main, crowd, order, token, floor_epoch = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[3] + 0
local asking, retention, block = nil, ARGV[2] + 0, ARGV[9] + 0
local wanted, permits, wanted_limit = ARGV[6], ARGV[7], ARGV[8] + 0
-- include: load
if bad then return redis.error_reply(bad) end
local head, head_before, head_channel, head_ticket, head_seen, head_window
local free_in, next_mode, next_permits, next_epoch, next_first, next_granted, next_expires
local next_profile
-- include: make_room
-- include: settle
-- include: find_mine
local answer
if not mine then
  answer = {epoch == ARGV[4] + 0 and first + count - 1 == ARGV[5] + 0 and 'late' or 'not-held'}
elseif limit ~= wanted_limit then
  answer = {'wrong-kind', limit}
elseif holder == token and wanted == 's' and
  (epoch ~= ARGV[4] + 0 or first + count - 1 ~= ARGV[5] + 0) then
  -- A downgrade that arrives again after a later upgrade must not undo it.
  answer = {'not-held'}
elseif holder == token then
  if wanted == 's' then
    -- include: begin_crowd
    local expires = since + ttl * 1000
    holder, taken, dirty = nil, 1, true
    redis.call('HSET', crowd, token, string.format('holds s 1 %.0f %s %.0f %.0f %.0f %s', expires,
      granted, epoch, first, count, profile))
    redis.call('ZADD', order, string.format('%.0f', expires - 9007199254740992),
      string.format('%016.0f %04.0f 1 %s', first, epoch, token))
  end
  answer = {'converted', epoch, first, count}
else
  local its_mode, held, expires, since_, e, f, n, its_profile =
    string.match(entry, '^holds (%l) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  local lease = string.format('%016.0f %04.0f %s %s', f, e, held, token)
  if wanted == 'x' then
    if taken > 1 then
      answer = {'busy', taken - 1}
    else
      -- include: issue
      redis.call('ZREM', order, lease)
      redis.call('HDEL', crowd, token)
      holder, taken, granted, profile = token, 0, since_, its_profile
      ttl = math.ceil((expires - now) / 1000)
      since = expires - ttl * 1000
      answer = {'converted', epoch, first, count}
    end
  else
    local more = permits - held
    if wanted == 'p' and permits + 0 > limit then
      answer = {'too-many-permits'}
    elseif more > 0 and (head or taken + more > limit) then
      answer = {'busy', taken - held}
    else
      if more ~= 0 then
        redis.call('ZREM', order, lease)
        redis.call('ZADD', order, string.format('%.0f', expires - 9007199254740992),
          string.format('%016.0f %04.0f %s %s', f, e, permits, token))
        redis.call('HSET', crowd, token, string.format('holds p %s %s %s %s %s %s %s', permits,
          expires, since_, e, f, n, its_profile))
        taken, dirty = taken + more, true
      end
      answer = {'converted', e + 0, f + 0, n + 0}
    end
  end
end
-- include: settle
-- include: tell_first
-- include: save
return answer
