-- Describes a lock for people. Changes nothing.
--
-- KEYS  1  the lock's record
--       2  its crowd
--       3  the order of the crowd
--
-- Returns an empty array when nobody uses the lock, else
--   limit        0 for a lock, all permits of a semaphore
--   closed       how long it stays closed, µs; 0 when it is not
--   epoch fence  the last fence issued
--   holders      how many follow, each as
--     mode permits epoch fence held left profile
--   waiters      how many follow, each as
--     mode permits place waited label
-- with times in µs, the profile as given to acquire and the label without its holds; or an error
-- as acquire does.
--
-- Atomic: one script, three keys of one slot. Looks at everybody in the crowd.
-- include: now
local stored = redis.call('GET', KEYS[1])
if not stored then return {} end
local crowd, floor_epoch = KEYS[2], 0
-- include: load
if bad then return redis.error_reply(bad) end
local closed = math.max(closed_until - now, 0)
local holders, waiters = {}, {}
if holder and since + ttl * 1000 > now then
  holders = {'x', 1, epoch, first, math.max(now - granted, 0), since + ttl * 1000 - now, profile}
end
if taken > 0 or latest > 0 then
  local all = redis.call('HGETALL', crowd)
  for i = 2, #all, 2 do
    local mode, permits, expires, since_, e, f, its_profile =
      string.match(all[i], '^holds (%l) (%d+) (%d+) (%d+) (%d+) (%d+) %d+ (.*)$')
    if mode and taken > 0 and expires + 0 > now then
      local at = #holders
      holders[at + 1], holders[at + 2], holders[at + 3] = mode, permits + 0, e + 0
      holders[at + 4], holders[at + 5] = f + 0, math.max(now - since_, 0)
      holders[at + 6], holders[at + 7] = expires - now, its_profile
    end
    local its_mode, its_permits, window, seen, arrived, label = string.match(all[i],
      '^waits (%l) (%d+) %d+ %S+ %d+ %d+ (%d+) (%d+) (%d+) %d+ (.*)$')
    if its_mode and seen + window * 1000 > now then
      local its_place = redis.call('ZSCORE', KEYS[3], all[i - 1])
      if its_place then
        local at = #waiters
        waiters[at + 1], waiters[at + 2], waiters[at + 3] = its_mode, its_permits + 0, its_place + 0
        waiters[at + 4], waiters[at + 5] = math.max(now - arrived, 0), label
      end
    end
  end
end
if #holders == 0 and #waiters == 0 and closed == 0 then return {} end
local answer = {limit, closed, epoch, first + count - 1, #holders / 7}
for _, value in ipairs(holders) do answer[#answer + 1] = value end
answer[#answer + 1] = #waiters / 5
for _, value in ipairs(waiters) do answer[#answer + 1] = value end
return answer
