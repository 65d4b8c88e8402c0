-- Ends the call where no lock is left: with one answer for all where all are done alike, since a server takes
-- longer over an answer for each than over one for all.
--
-- in: settle.lua, for each lock
if not (answers or rest) then return done end
if answers then
  for i = 1, number do
    if answers[i] == nil then answers[i] = done end
  end
end
if not rest then return answers end
