-- Changes the limit of a semaphore in use. Waiters that want more than there is lose their place.
--
-- KEYS  1  the lock's record
--       2  its crowd
--       3  the order of the crowd
-- ARGV  1  the new limit
--       2  fence retention, ms
--       3  fail-over epoch
--
-- Returns one of
--   set limit        what it was
--   not-in-use
--   wrong-kind 0     it is a lock
-- or an error as acquire does.
--
-- Atomic: one script, three keys of one slot. Looks at everybody in the crowd.
-- include: now
local stored = redis.call('GET', KEYS[1])
if not stored then return {'not-in-use'} end
local main, crowd, order, floor_epoch = KEYS[1], KEYS[2], KEYS[3], ARGV[3] + 0
local asking, retention = nil, ARGV[2] + 0
-- include: load
if bad then return redis.error_reply(bad) end
local head, head_before, head_channel, head_ticket, head_seen, head_window
local free_in, next_mode, next_permits, next_epoch, next_first, next_granted, next_expires
local next_profile
-- include: make_room
-- include: settle
local answer
if not (holder or taken > 0 or latest > 0 or closed_until > 0) then
  answer = {'not-in-use'}
elseif limit == 0 then
  answer = {'wrong-kind', 0}
else
  answer = {'set', limit}
  limit, dirty = ARGV[1] + 0, true
  if latest > 0 then
    local all = redis.call('HGETALL', crowd)
    for i = 2, #all, 2 do
      local permits = string.match(all[i], '^waits p (%d+) ')
      if permits and permits + 0 > limit then
        redis.call('ZREM', order, all[i - 1], 'till ' .. all[i - 1])
        redis.call('HDEL', crowd, all[i - 1])
      end
    end
  end
end
-- include: settle
-- include: tell_first
-- include: save
return answer
