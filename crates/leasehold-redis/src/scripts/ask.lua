-- Notes that holders are asked to let go.
--
-- KEYS  1  the lock's record
--       2  its crowd
--       3  the order of the crowd
-- ARGV  1  epoch of the fence of the lease that is meant, or an empty string for all
--       2  fence retention, ms
--       3  fail-over epoch
--       4  sequence of that fence
--       5  who asks, in the form of an owner in a label
--
-- Returns one of
--   asked holders
--   not-held
-- or an error as acquire does.
--
-- Atomic: one script, three keys of one slot. Looks at every holder.
-- include: now
local stored = redis.call('GET', KEYS[1])
if not stored then return {'not-held'} end
local main, crowd, order, floor_epoch = KEYS[1], KEYS[2], KEYS[3], ARGV[3] + 0
local asking, retention = nil, ARGV[2] + 0
local all, wanted_epoch, wanted = ARGV[1] == '', tonumber(ARGV[1]), tonumber(ARGV[4])
-- include: load
if bad then return redis.error_reply(bad) end
local head, head_before, head_channel, head_ticket, head_seen, head_window
local free_in, next_mode, next_permits, next_epoch, next_first, next_granted, next_expires
local next_profile
-- include: settle
-- include: tell_first
local holders = 0
if holder then
  if all or epoch == wanted_epoch and first <= wanted and wanted < first + count then
    profile = string.match(profile, '^%d+ [^ ]* [^ ]*') .. ' ' .. ARGV[5]
    holders, dirty = 1, true
  end
elseif taken > 0 then
  local everybody = redis.call('HGETALL', crowd)
  for i = 2, #everybody, 2 do
    local before, e, f, n = string.match(everybody[i],
      '^(holds %l %d+ %d+ %d+ (%d+) (%d+) (%d+) %d+ [^ ]* [^ ]*)')
    if e and (all or e + 0 == wanted_epoch and f + 0 <= wanted and wanted < f + n) then
      redis.call('HSET', crowd, everybody[i - 1], before .. ' ' .. ARGV[5])
      holders, dirty = holders + 1, true
    end
  end
end
-- include: save
if holders == 0 then return {'not-held'} end
return {'asked', holders}
