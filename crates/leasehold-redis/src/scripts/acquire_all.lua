-- Takes several locks, or none of them.
--
-- KEYS  3i-2  record of the i-th lock
--       3i-1  its crowd
--       3i    the order of the crowd
-- ARGV  1     fail-over epoch
--      and for the i-th lock, from 10i-8 on:
--        token
--        ttl, ms
--        how long the record is kept, ms: ttl + fence retention
--        how many fences to reserve
--        holds, owner and metadata, separated by a space
--        mode, permits and limit, as for acquire
--        1 to go before all who don't, else 0
--        how long to close the lock with the grant, µs; 0 for not at all
--
-- Returns one of
--   granted {epoch fence count …}  all are held, under these fences
--   blocked i answer               the i-th, counted from 0, is not to be had, for the reason that
--                                  acquire would answer; none was taken
-- or an error as acquire does.
--
-- Atomic: one script. Keys of several slots must not be given to a cluster.
-- include: now
local floor_epoch = ARGV[1] + 0
local fences = {}
for round = 1, 2 do
  for i = 1, #KEYS / 3 do
    local main, crowd, order, at = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i], 10 * i - 8
    local token, wanted_ttl, wanted_profile = ARGV[at], ARGV[at + 1] + 0, ARGV[at + 4]
    local retention, block = ARGV[at + 2] - ARGV[at + 1], ARGV[at + 3] + 0
    local mode, permits, wanted_limit = ARGV[at + 5], ARGV[at + 6], ARGV[at + 7] + 0
    local preferred, close_for = ARGV[at + 8] == '1', ARGV[at + 9] + 0
    local asking, wanted_place, answer
    local stored = redis.call('GET', main)
    -- include: load
    if bad then return redis.error_reply(bad) end
    local head, head_before, head_channel, head_ticket, head_seen, head_window
    local free_in, next_mode, next_permits, next_epoch, next_first, next_granted, next_expires
    local next_profile
    -- include: settle
    -- include: find_mine
    if round == 1 then
      -- include: tell_first
      -- include: refuse
      -- include: find_free
      if not answer and not mine and (waits or not free) then
        answer = {'busy'}
        if not free_in then
          -- include: next_free
        end
        -- include: add_contention
      end
      -- include: save
      if answer then return {'blocked', i - 1, answer} end
    else
      local at = #fences
      if mine then
        -- include: already
        fences[at + 1], fences[at + 2], fences[at + 3] = answer[2], answer[3], answer[4]
      else
        -- include: grant
        fences[at + 1], fences[at + 2], fences[at + 3] = epoch, first, count
      end
      -- include: tell_first
      -- include: save
    end
  end
end
return {'granted', fences}
