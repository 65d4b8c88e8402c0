-- What to return about the holder: as it is stored, since clients have more time to take it apart.
--
-- in: word, the first part of the answer, if the answer names the holder
local seen
if word then
  if own == $SHARES then
    seen = get(token)
  elseif holders > 0 then
    seen = nearest_hold()
  else
    seen = ends > 0 and get('about')
  end
end
