-- Adds to an answer what stands in the way.
--
-- in:  answer, free_in and the locals of next_free
do
  local at = #answer
  answer[at + 1] = free_in
  if next_mode then
    answer[at + 2], answer[at + 3], answer[at + 4] = next_mode, next_permits + 0, limit
    answer[at + 5], answer[at + 6] = next_epoch + 0, next_first + 0
    answer[at + 7], answer[at + 8] = math.max(now - next_granted, 0), next_expires - now
    answer[at + 9] = next_profile
  end
end
