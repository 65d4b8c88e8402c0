-- Carries out what is asked of several locks, each for itself.
--
-- in: answers, by lock; room, how much this call may still do, so that no call keeps the server long

-- Does the work for these locks. One that can't be read fails alone: failed is told of it and of the
-- error. Those for which there is no room any more are answered that nothing was done.
--
-- cost: how much room it takes where work returns true.
local function each(locks, cost, work, failed)
  if #KEYS == 1 then return work(locks[1]) end
  local at = 0
  local function onward()
    while at < #locks do
      at = at + 1
      if room < cost then
        answers[locks[at]] = {'later'}
      elseif work(locks[at]) then
        room = room - cost
      end
    end
  end
  while at < #locks do
    local done, why = pcall(onward)
    if not done then failed(locks[at], type(why) == 'table' and why.err or why) end
  end
end
