-- Ends the lease that has a fence, for an operator who has seen it. The next fence is above all that the holder could
-- still use in its process.
--
-- KEYS[1]  the lock
-- ARGV[1]  see begin.lua; $MEANT, as for ask, of one lease
--
-- Returns an array with one answer, which is one of
--   released
--   other-fence next [epoch fence …]   the first fence of each holder; next: where to go on, or 0
--   not-held
-- or foreign, damaged, version or failed, as acquire returns it.
--
-- Atomic for each of its calls, which look at up to $STEP holders. Works at the memory limit.
-- include: begin
-- include: clock
local frees, found = true, false
local _, its_epoch, sequence, from = unpack('$MEANT', request, at)
key = keys[1]
-- include: read
if not answer then
  -- include: wide
  local before = waiters > 0 and head
  settle()
  answer = {'not-held'}
  if ends > 0 then
    local first = following - (string.match(get('about') or '', '^%d+ %d+ (%d+)') or 1)
    answer = {'other-fence', 0, floor(last_epoch), floor(first)}
    if last_epoch == its_epoch and first <= sequence and sequence < following then
      holder, ends, asked, found = '$NOBODY', 0, 0, true
    end
  elseif holders > 0 then
    local to, meant, its_record = min(holders, from + $STEP - 1), nil, nil
    answer = {'other-fence', to < holders and floor(to + 1) or 0}
    for n = from, to do
      local its, record = hold_at(n)
      local _, _, _, first, hold_epoch, block = unpack('$SHARER', record)
      if hold_epoch == its_epoch and first <= sequence and sequence < first + block then meant, its_record = its, record end
      answer[#answer + 1], answer[#answer + 2] = floor(hold_epoch), floor(first)
    end
    if meant then
      drop_hold(meant, its_record)
      found = true
    end
  end
  if found then
    following, changed = following + 1, true
    answer = {'released'}
  end
  settle()
  tell_first(before, nil)
  -- include: commit
  -- include: tell
end
-- include: only
