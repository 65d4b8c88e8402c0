-- Checks the fence of a lease, exclusive or shared, and runs one command, in one step.
--
-- KEYS[1]   the fence record of exclusive leases; KEYS[2] the record of shared ones; further KEYS
--           are the command's
-- ARGV[1]   the fence, in decimal
-- ARGV[2]   expiry of the record in ms; 0 for none
-- ARGV[3]   x for an exclusive lease, s for a shared one
-- ARGV[4..] the command and its arguments, at most 6997 words; none to only raise the record
--
-- Returns what the script for exclusive leases returns. All keys have to be in one hash slot.
if #ARGV > 7000 then
  error('leasehold: a fenced command takes at most 6997 words; split it', 0)
end
if ARGV[3] ~= 'x' and ARGV[3] ~= 's' then
  error('leasehold: say x for an exclusive lease or s for a shared one before the command', 0)
end
local passes, seen = leasehold_touch(KEYS[1], ARGV[1], ARGV[2], KEYS[2], ARGV[3] == 's')
if not passes then
  return {0, seen}
end
if #ARGV < 4 then
  return {1}
end
return {1, redis.call(unpack(ARGV, 4))}
