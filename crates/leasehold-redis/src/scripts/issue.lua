-- Issues the next block of fences.
--
-- in:  the locals of load, floor_epoch, block
if epoch < floor_epoch then epoch = floor_epoch end
first, count, released, dirty = math.max(first + count, now), block, nil, true
