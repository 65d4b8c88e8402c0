-- Notes the answer about the i-th lock. The same number for all is returned once: an answer for each takes a server
-- longer. What could not be sent comes last: see tell.lua.
--
-- in: i, answer, unsent; out: answers, or same while all are the same number
if i == 1 then same = type(answer) == 'number' and answer end
if answers or unsent or answer ~= same then
  if not answers then
    answers = {}
    for n = 1, i - 1 do answers[n] = same end
  end
  answers[i] = answer
  if unsent and i == #keys then answers[i + 1] = unsent end
end
