-- Tells a new first in line when the lock can come free, if it would sleep past that moment.
--
-- in:  the locals of load, settled, free_in or nil; token is the asking one, who needs no telling
if head and head ~= head_before and head ~= asking then
  -- include: next_free
  if now + free_in < head_seen + math.floor(head_window * 1000 / 3) then
    redis.pcall('PUBLISH', head_channel, string.format('first %s %.0f', head_ticket, free_in))
  end
end
