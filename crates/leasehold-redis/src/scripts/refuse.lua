-- Says why the lock can't be used as asked at all.
--
-- in:  the locals of load and find_mine, mode, permits, wanted_limit, answer
-- out: answer  set where it can't
if holder or taken > 0 or latest > 0 or closed_until > 0 then
  -- Whoever has something of a semaphore already came under the limit of that time.
  if limit ~= wanted_limit and not (entry and limit > 0 and wanted_limit > 0) then
    answer = {'wrong-kind', limit}
  end
end
if not answer and mode == 'p' and permits + 0 > wanted_limit then answer = {'too-many-permits'} end
