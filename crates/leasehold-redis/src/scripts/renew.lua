-- Lets leases run on, each for itself: never creates one, never takes one away.
--
-- KEYS  i       the i-th lock
-- ARGV  1 to 3  see now.lua
--       4       ttl, ms, from now, thirteen digits, for those locks that say nothing else
--       4+i     for the i-th lock; or 5, where no more than this is asked of several locks: what is asked of each,
--               one behind the other. Separated by blanks:
--               token, 32 hexadecimal digits
--               the sequence that follows the last of the lease's fences, sixteen digits; an
--               exclusive lease takes over what is above all issued
--               their epoch, four digits
--               and if more is asked: 1 when the lease may end earlier than it would have, else 0;
--               ttl, as ARGV[4]; and the token that it is to have from now on, if it is handed over
--
-- Returns 1, an integer, where all were renewed and no holder is asked to let go; else an array with one answer for
-- each lock, or for one lock its answer, as acquire does, which is one of
--   1         an integer: renewed
--   2         renewed, and its holder is asked to let go
--   late      it had run out, and nobody has held the lock since; it stays ended
--   not-held
-- or foreign, damaged, version or failed, as acquire says it.
--
-- Atomic for each lock. Keys of several slots must not be given to a cluster. Works at the server's
-- memory limit.
-- include: now
local keys, argv, try, number, find = KEYS, ARGV, redis.pcall, #KEYS, string.find
local answers, rest = nil, nil
local ahead, done = 4, 1
local packed = number > 1 and #argv == ahead + 1 and argv[ahead + 1]
local ttl = argv[4]
local ends_now = now + ttl * 1000
local up, low = ends_now + 999, ends_now % 100000000
local kept = (up - up % 1000) / 1000 + retention
local needed = number > 1 and kept .. ''
local ends = format('%08d%08d', (ends_now - low) / 100000000, low)
local new_end = ' ' .. ends
local from = 1
-- Most are exclusive, for nobody waits, and end later now. The first that is otherwise ends this.
while packed and from <= number do
  local key = keys[from]
  local state = try('HGET', key, 'state')
  local held = state and #state == 85 and sub(state, 15, 68)
  if not held or find(packed, held, 54 * from - 53, true) ~= 54 * from - 53 or state < needed then break end
  local before = sub(state, 70, 85)
  if before <= us or before > ends then break end
  local written = try('HSET', key, 'state', sub(state, 1, 14) .. held .. new_end)
  if written ~= 0 and type(written) ~= 'number' then break end
  from = from + 1
end
-- Nobody in line has run out, and nothing is closed: only the end of the lease changes. No function is made for
-- that: Lua would make it anew in each call.
for i = from, number do
  local key, asked, state, written = keys[i], argv[i + ahead], nil, nil
  -- Two renewals of one lease take effect in their order.
  if not (rest and rest[key]) then
    state = try('HGET', key, 'state')
    local length = state and #state or 0
    local held = length > 68 and sub(state, 15, 68)
    if held and (packed and find(packed, held, 54 * i - 53, true) == 54 * i - 53 or held == asked)
      and (needed and state >= needed or not needed and sub(state, 1, 13) + 0 >= kept) then
      local before = sub(state, 70, 85)
      -- Where no exclusive lease ends there is a word, and letters are above digits.
      local goes_on = before > us and before < ':'
      if goes_on and length ~= 85 then
        local soonest = length > 150 and sub(state, 87, 102)
          or length == 90 and sub(try('HGET', key, 'line') or '', 1, 16) or ''
        goes_on = soonest > us
      end
      if goes_on then
        -- Also what changes nothing is written: whoever waits for replicas waits for a write.
        if ends > before then
          state = sub(state, 1, 14) .. held .. (length == 85 and new_end or new_end .. sub(state, 86))
        end
        written = try('HSET', key, 'state', state)
      end
    end
  end
  if written ~= 0 then
    if packed then asked = sub(packed, 54 * i - 53, 54 * i) end
    -- include: settle
  end
end
-- include: settled
if rest == true then answers, rest = {false}, {1} end
local frees = true
-- include: lock
-- include: crowd
-- include: line
-- include: expire_and_grant
for _, i in ipairs(rest) do
  local asked = argv[i + ahead]
  local token, last, its_epoch = sub(asked, 1, 32), sub(asked, 34, 49) - 1, sub(asked, 51, 54) + 0
  local wanted_ttl, shorten, successor = ttl + 0, false, ''
  if #asked > 54 then
    shorten, wanted_ttl, successor = sub(asked, 56, 56) == '1', sub(asked, 58, 70) + 0, sub(asked, 72)
  end
  local lock, answer = open(keys[i], token)
  if lock then
    local before = head_of(lock)
    expire_and_grant(lock)
    if successor ~= '' then
      if lock.holder ~= successor and not get(lock, successor) then hand_to(lock, token, successor) end
      token = successor
    end
    local ends, asked = now + wanted_ttl * 1000, '^%d+ [^ ]* [^ ]* '
    local hold = hold_of(lock, token)
    if lock.holder == token or hold then lock.dirty = true end
    if lock.holder == token then
      -- The head reckons with the end that it was told.
      if shorten and ends < lock.expires then before = nil end
      if shorten or ends > lock.expires then
        lock.expires, lock.dirty = ends, true
        keep_until(lock, ends)
      end
      local issued = lock.first + lock.count - 1
      if last > issued or last == issued and its_epoch > lock.epoch then
        lock.epoch, lock.first, lock.dirty = its_epoch, last - lock.count + 1, true
        keep_until(lock, last + 1)
      end
      answer = string.find(lock.profile, asked) and 2 or 1
    elseif hold then
      if shorten and ends < hold.expires then before = nil end
      if shorten or ends > hold.expires then
        hold.expires = ends
        put_hold(lock, hold)
        will_end(lock, hold)
      end
      answer = string.find(hold.profile, asked) and 2 or 1
    elseif is_late(lock, its_epoch, last) then
      answer = {'late'}
    else
      answer = {'not-held'}
    end
    tell_first(lock, before)
    answer = commit(lock) or answer
  end
  answers[i] = answer
end
return tell(answers)
