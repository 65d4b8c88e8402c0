-- Takes away the lease that has a fence, for an operator who has seen it. The next fence is above
-- any that the holder could still hand on.
--
-- KEYS  1  the lock's record
--       2  its crowd
--       3  the order of the crowd
-- ARGV  1  epoch of the fence
--       2  fence retention, ms
--       3  fail-over epoch
--       4  sequence of the fence
--
-- Returns one of
--   released
--   other-fence epoch fence [epoch fence …]   the first fences of those who hold it
--   not-held
-- or an error as acquire does.
--
-- Atomic: one script, three keys of one slot. Looks at every holder. Works at the memory limit.
-- include: now
local stored = redis.call('GET', KEYS[1])
if not stored then return {'not-held'} end
local main, crowd, order, floor_epoch = KEYS[1], KEYS[2], KEYS[3], ARGV[3] + 0
local asking, retention, wanted_epoch, wanted = nil, ARGV[2] + 0, ARGV[1] + 0, ARGV[4] + 0
-- include: load
if bad then return redis.error_reply(bad) end
local head, head_before, head_channel, head_ticket, head_seen, head_window
local free_in, next_mode, next_permits, next_epoch, next_first, next_granted, next_expires
local next_profile
-- include: make_room
-- include: settle
local answer = {'not-held'}
local token, entry
if holder then
  answer = {'other-fence', epoch, first}
  if epoch == wanted_epoch and first <= wanted and wanted < first + count then token = holder end
elseif taken > 0 then
  answer = {'other-fence'}
  local all = redis.call('HGETALL', crowd)
  for i = 2, #all, 2 do
    local e, f, n = string.match(all[i], '^holds %l %d+ %d+ %d+ (%d+) (%d+) (%d+) ')
    if e then
      e, f, n = e + 0, f + 0, n + 0
      if e == wanted_epoch and f <= wanted and wanted < f + n then
        token, entry = all[i - 1], all[i]
      end
      answer[#answer + 1], answer[#answer + 2] = e, f
    end
  end
end
if token then
  local before = released
  -- include: drop_hold
  released, count = before, count + 1
  answer = {'released'}
end
-- include: settle
-- include: tell_first
-- include: save
return answer
