-- What is wanted: see acquire.lua.
local wish, ttl, block, holds, mode, permits, its_limit, cooldown, preferred, waits, after, label
local about, waiting_label, usual, lasts, lease
local ticket, beat, window, behind, brought, most, channel, after_epoch, after_end
