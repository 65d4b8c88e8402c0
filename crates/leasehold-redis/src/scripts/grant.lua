-- Grants what is wanted. out: answer
local first = max(following, least)
following, last_epoch, holder, asked, changed = first + block, epoch, '$NOBODY', 0, true
limit = its_limit
if cooldown > 0 then closed = max(closed, now + cooldown) end
if mode == 'x' then
  holder, ends = token, now + ttl
  put('about', about)
else
  add_hold(token, now + ttl, first, epoch, block, mode, permits, about)
end
answer = floor(first)
