-- Looks what the token has of the lock.
--
-- in:  the locals of load, settled, crowd, order, token
-- out: entry  what the crowd says of it, or false or nil
--      waits  its place in line, or false or nil
--      mine   whether it holds the lease
local entry, waits
if taken > 0 or latest > 0 then
  entry = redis.call('HGET', crowd, token)
  waits = entry and string.byte(entry) == 119 and redis.call('ZSCORE', order, token)
end
local mine = holder == token or entry and taken > 0 and string.byte(entry) == 104
