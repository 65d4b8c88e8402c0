-- Reads the record of one lock into locals; docs/wire.md has the formats.
--
-- in:  stored  what GET said, floor_epoch
-- out: the locals below; all times in µs since the Unix epoch, all lengths (ttl) in ms
local holder, since, ttl, granted, profile  -- the exclusive holder, if there is one
local soonest, latest = 0, 0                -- no place ends before or after; 0: there is no line
local closed_until = 0                      -- 0: it is not closed
local epoch, first, count = floor_epoch, 0, 0  -- the last block of fences issued
local place = 0                             -- the last place given
local limit = 0                             -- 0 for a lock, all permits of a semaphore
local taken = 0                             -- permits in use, or shared holders
local released                              -- the token of the last release
local dirty, bad = false, nil
if stored then
  local shape, who, at, from, to, closed, length, rest
  shape, who, at, place, from, to, closed, length, epoch, first, count, rest = string.match(stored,
    '^leasehold/1 (%l+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ?(.*)$')
  if shape == 'held' or shape == 'want' then
    holder, since, ttl = who, at + 0, length + 0
    granted, profile = string.match(rest, '^(%d+) (%d+ .*)$')
    if not granted then shape = nil end
  elseif shape == 'many' then
    limit, taken = string.match(rest, '^(%d+) (%d+)$')
    if taken then limit, taken = limit + 0, taken + 0 else shape = nil end
  elseif shape ~= 'free' then
    shape = nil
  end
  if shape then
    soonest, latest, closed_until = from + 0, to + 0, closed + 0
    epoch, first, count, place = epoch + 0, first + 0, count + 0, place + 0
    if not holder and string.byte(who) ~= 45 then released = who end
    if shape == 'free' then latest, closed_until = 0, 0 end
  elseif string.find(stored, '^leasehold/%d+ ') and not string.find(stored, '^leasehold/1 ') then
    bad = 'LEASEHOLDVERSION ' .. string.match(stored, '^leasehold/(%d+)')
  else
    bad = 'LEASEHOLDFOREIGN not a record of leasehold'
  end
end
