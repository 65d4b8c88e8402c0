-- Grants what is wanted. out: answer
local first = max(following, least)
following, last_epoch, holder, asked, changed = first + block, epoch, '$NOBODY', 0, true
limit, given = its_limit, now
if cooldown > 0 then closed = max(closed, now + cooldown) end
if mode == 'x' then
  holder, ends = token, now + ttl
  put('about', stamp .. label)
else
  add_hold(token, now + ttl, first, epoch, block, mode, permits, stamp .. label)
end
answer = floor(first)
