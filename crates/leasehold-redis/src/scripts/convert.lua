-- Changes the mode in which a lease is held, at once or not at all; its end stays as it is.
--
-- KEYS[1]  the lock
-- ARGV[1]  see begin.lua; $CONVERSION: token; the sequence that follows the last of the lease's fences, and their
--          epoch; mode, permits and limit, as for acquire; how many fences to reserve if new ones are issued
--
-- Returns an array with one answer, which is one of
--   converted epoch fence count
--   busy others          shared holders, or permits that others have
--   wrong-kind limit
--   too-many-permits
--   late                 it had expired, and the lock has had no holder since
--   not-held
-- or foreign, damaged, version or failed, as acquire returns it.
--
-- Atomic. Works at the server's memory limit.
-- include: begin
-- include: clock
-- include: in_time
local frees = true
local end_of, its_epoch, mode, permits, its_limit, block
key = keys[1]
token, end_of, its_epoch, mode, permits, its_limit, block = unpack('$CONVERSION', request, at)
-- include: read
if not answer then
  -- include: wide
  local before = waiters > 0 and head
  settle()
  local own, record = what(token)
  local is_alone = ends > 0 and holder == token
  local _, number, its_end, first, hold_epoch, its_block, its_mode, its_permits, from
  if own == $SHARES then
    _, number, its_end, first, hold_epoch, its_block, its_mode, its_permits, from = unpack('$SHARER', record)
  elseif is_alone then
    its_block = string.match(get('about') or '', '^%d+ %d+ (%d+)') or 1
    first, hold_epoch = following - its_block, last_epoch
  end
  if not (is_alone or own == $SHARES) then
    local late = ends == 0 and holders == 0 and holder == '$NOBODY' and end_of == following and its_epoch == last_epoch
    answer = {late and 'late' or 'not-held'}
  elseif limit ~= its_limit or mode == 'j' or its_mode == 'j' then
    answer = {'wrong-kind', floor(limit)}
  elseif is_alone and mode == 's' and (its_epoch ~= last_epoch or end_of ~= following) then
    -- A downgrade that arrives again after a later upgrade must not undo it.
    answer = {'not-held'}
  elseif is_alone and mode == 's' then
    local text, its_end = get('about') or stamp .. '1 1  ', ends
    holder, ends, asked = '$NOBODY', 0, 0
    add_hold(token, its_end, first, hold_epoch, its_block + 0, 's', 1, text)
    answer = {'converted'}
  elseif is_alone then
    answer = {'converted'}
  elseif mode == 'x' and holders > 1 then
    answer = {'busy', floor(holders - 1)}
  elseif mode == 'x' then
    drop_hold(token, record)
    first, its_block, hold_epoch = issue(block), block, epoch
    holder, ends = token, its_end
    local text = string.gsub(sub(record, from), '^(%d+ %d+) %d+', '%1 ' .. format('%.0f', block))
    if string.find(text, '^%d+ %d+ %d+ %d+ [^ ]* [^ ]* ') then asked = 1 end
    put('about', text)
    answer = {'converted'}
  elseif mode == 'p' and permits > its_limit then
    answer = {'too-many-permits'}
  elseif permits > its_permits and (waiters > 0 or taken + permits - its_permits > its_limit) then
    answer = {'busy', floor(taken - its_permits)}
  else
    if permits ~= its_permits then
      taken = taken + permits - its_permits
      put(token, pack('$SHARER', 's', number, its_end, first, hold_epoch, its_block, its_mode, permits) .. sub(record, from))
    end
    answer = {'converted'}
  end
  if answer[1] == 'converted' then
    answer[2], answer[3], answer[4] = floor(hold_epoch), floor(first), floor(its_block)
    -- Write even if nothing changes: a caller that waits for replicas waits for a write.
    changed = true
  end
  settle()
  tell_first(before, nil)
  -- include: commit
  -- include: tell
end
-- include: only
