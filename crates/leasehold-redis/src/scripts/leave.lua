-- Gives up whatever a token has: a place in line, or a lease.
--
-- KEYS  1  the lock's record
--       2  its crowd
-- ARGV  1  token
--       2  fence retention, ms
--       3  fail-over epoch
--
-- Returns one of
--   left       it was waiting
--   released   it held the lease
--   not-held   it had nothing
-- or an error as acquire does.
--
-- Atomic: one script, two keys of one slot. Works at the server's memory limit.
-- include: now
local stored = redis.call('GET', KEYS[1])
if not stored then return {'not-held'} end
local main, crowd, token, floor_epoch = KEYS[1], KEYS[2], ARGV[1], ARGV[3] + 0
local asking, retention = nil, ARGV[2] + 0
-- include: load
if bad then return redis.error_reply(bad) end
local head, head_before, head_place, head_channel, head_ticket, head_seen, head_window
local free_in, next_mode, next_permits, next_epoch, next_first, next_granted, next_expires
local next_profile
-- include: make_room
-- include: settle
local answer = {'not-held'}
local entry
if taken > 0 or line_until > 0 then
  entry = redis.call('ZRANGEBYLEX', crowd, '[who ' .. token, '(who ' .. token .. '!')[1]
end
if entry and string.find(entry, ' waits ', 1, true) == 37 then
  local mine, window, seen = string.match(entry,
    '^who %S+ waits %l %d+ (%d+) %S+ %d+ %d+ (%d+) %d+ %d+ (%d+) ')
  redis.call('ZREM', crowd, entry, 'line ' .. mine .. ' ' .. token,
    string.format('till %016.0f %s %s', seen + window * 1000, mine, token))
  dirty, answer = true, {'left'}
elseif holder == token or entry then
  -- include: drop_hold
  answer = {'released'}
end
-- include: settle
-- include: tell_first
-- include: save
return answer
