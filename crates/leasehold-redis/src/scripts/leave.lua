-- Gives up whatever a token has: a place in line, or a lease.
--
-- KEYS  1  the lock's record
--       2  its crowd
--       3  the order of the crowd
-- ARGV  1  token
--       2  fence retention, ms
--       3  fail-over epoch
--       4  1 to open the lock again that the grant closed, else 0 or nothing
--
-- Returns one of
--   left       it was waiting
--   released   it held the lease
--   not-held   it had nothing
-- or an error as acquire does.
--
-- Atomic: one script, three keys of one slot. Works at the server's memory limit.
-- include: now
local stored = redis.call('GET', KEYS[1])
if not stored then return {'not-held'} end
local main, crowd, order, token, floor_epoch = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[3] + 0
local asking, retention = nil, ARGV[2] + 0
-- include: load
if bad then return redis.error_reply(bad) end
local head, head_before, head_channel, head_ticket, head_seen, head_window
local free_in, next_mode, next_permits, next_epoch, next_first, next_granted, next_expires
local next_profile
-- include: make_room
-- include: settle
local answer = {'not-held'}
local entry
if taken > 0 or latest > 0 then entry = redis.call('HGET', crowd, token) end
if entry and string.byte(entry) == 119 then
  if redis.call('ZREM', order, token, 'till ' .. token) > 0 then answer = {'left'} end
  redis.call('HDEL', crowd, token)
  dirty = true
elseif holder == token or entry and taken > 0 then
  -- include: drop_hold
  if ARGV[4] == '1' then closed_until = 0 end
  answer = {'released'}
end
-- include: settle
-- include: tell_first
-- include: save
return answer
