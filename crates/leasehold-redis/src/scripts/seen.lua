-- What to say of who has the lock: as it is stored, since clients have more time to take it apart.
local seen
if type(answer) == 'table' and (answer[1] == 'busy' or answer[1] == 'waiting' or answer[1] == 'already') then
  if own == $SHARES then
    seen = get(token)
  elseif holders > 0 then
    seen = nearest_hold()
  else
    seen = ends > 0 and get('about')
  end
  seen = seen or ''
end
