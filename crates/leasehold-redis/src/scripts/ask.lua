-- Notes that holders are requested to release.
--
-- KEYS[1]  the lock
-- ARGV[1]  see begin.lua; $MEANT: 1 for all leases, or 0 for the lease with a fence; the epoch and sequence of that
--          fence; the number of the sharer to start from, at first 1
--          then who requests the release, in the form of an owner in a label
--
-- Returns an array with one answer, which is one of
--   asked holders next   next: where to go on, or 0
--   foreign, damaged, version or failed, as acquire returns it
--
-- Atomic for each of its calls, which look at up to $STEP holders.
-- include: begin
-- include: clock
-- include: in_time
local frees, number, onward = false, 0, 0
local all, its_epoch, sequence, from, who = unpack('$MEANT', request, at)
who = sub(request, who)
key = keys[1]
-- include: read
if not answer then
  -- include: wide
  local before = waiters > 0 and head
  settle()
  tell_first(before, nil)
  if ends > 0 then
    local text = string.match(get('about') or '', '^%d+ %d+ %d+ %d+ [^ ]* [^ ]*') or stamp .. '1 1  '
    local first = following - string.match(text, '^%d+ %d+ (%d+)')
    if all == 1 or last_epoch == its_epoch and first <= sequence and sequence < following then
      put('about', text .. ' ' .. who)
      number, asked, changed = 1, 1, true
    end
  else
    local to = min(holders, from + $STEP - 1)
    for n = from, to do
      local its, record = hold_at(n)
      local _, _, _, first, hold_epoch, block, _, _, at = unpack('$SHARER', record)
      if all == 1 or hold_epoch == its_epoch and first <= sequence and sequence < first + block then
        local text = string.match(sub(record, at), '^%d+ %d+ %d+ %d+ [^ ]* [^ ]*') or stamp .. '1 1  '
        put(its, sub(record, 1, at - 1) .. text .. ' ' .. who)
        number = number + 1
      end
    end
    if to < holders then onward = to + 1 end
  end
  answer = {'asked', floor(number), floor(onward)}
  -- include: commit
  -- include: tell
end
-- include: only
