-- Takes into the record's bounds that a place ends at the time ends. The later bound goes further
-- than it must, so that not every waiter moves it.
--
-- in:  the locals of load, ends, window (ms)
if latest == 0 or ends < soonest then soonest, dirty = ends, true end
if ends > latest then latest, dirty = ends + math.floor(window * 125), true end
