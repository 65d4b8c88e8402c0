-- Checks a fence and runs one command, in one step.
--
-- KEYS[1]   the fence record; further KEYS are the command's
-- ARGV[1]   the fence, in decimal
-- ARGV[2]   expiry of the record in ms; 0 for none
-- ARGV[3..] the command and its arguments, at most 6998 words, which Lua can pass on; none to
--           only raise the record
--
-- Returns {1, the command's reply} when the fence passes ({1} without a command), or
-- {0, the highest fence seen} when it is stale. If the command fails, its error is raised, and the
-- record stays raised. All keys have to be in one hash slot.
if #ARGV > 7000 then
  error('leasehold: a fenced command takes at most 6998 words; split it', 0)
end
local passes, seen = leasehold_touch(KEYS[1], ARGV[1], ARGV[2])
if not passes then
  return {0, seen}
end
if #ARGV < 3 then
  return {1}
end
return {1, redis.call(unpack(ARGV, 3))}
