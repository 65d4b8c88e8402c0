-- Answers for the lock of the short way, or leaves it to the other ways; the answer about one lock goes without
-- an array around it, in which a server looks for much before it sends it. What can't be read fails alone;
-- and what the server refuses to write here, as at its memory limit, the other ways may be able to do.
--
-- in: number, of locks; answers, nil until one is not done; rest, nil until one is left, and true where that is the
-- only one, and argv and ahead, how many arguments there are before the first lock's; done, the answer if it is
-- done; key and i, which lock it is, and asked, what is asked of it; state, as it was read, and written, what the
-- write answered, nil if there was none.
-- A text has no err, and asking it costs less than its type.
if written == 0 or written and type(written) == 'number' then
  if number == 1 then return done end
elseif state and state.err and not string.find(state.err, 'WRONGTYPE') then
  answers = answers or {}
  answers[i] = {'failed', state.err}
elseif number == 1 then
  rest = true
else
  answers, rest = answers or {}, rest or {}
  answers[i], rest[#rest + 1], rest[key], argv[i + ahead] = false, i, true, asked
end
