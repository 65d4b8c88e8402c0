-- leasehold_touch(guard, fence, expiry_ms): raises a guard on first touch.
--
-- guard      key of the guard, one of KEYS; holds the highest fence seen, in decimal
-- fence      decimal text, as the client prints it
-- expiry_ms  decimal text: how long the guard is kept after this touch; '0' keeps it for ever
--
-- Returns true when the fence passes, or false and the highest fence seen when it is stale.
-- Raises an error for anything that is no fence, and for a guard that holds something else;
-- nothing has been changed then.
--
-- Lua's numbers are exact up to 2^53 only, and fences go up to 2^63: they are compared as two
-- halves, never as one number. Comparing the texts would depend on the server's locale.
local function leasehold_touch(guard, fence, expiry_ms)
  local function halves(text)
    if type(text) ~= 'string' or #text > 19 or not string.match(text, '^%d+$') then
      return nil
    end
    local padded = string.rep('0', 19 - #text) .. text
    return tonumber(string.sub(padded, 1, 9)), tonumber(string.sub(padded, 10))
  end

  local high, low = halves(fence)
  if not high then
    error('leasehold: the fence given is no decimal number of at most 19 digits', 0)
  end
  local expiry = tonumber(expiry_ms)
  if not expiry or expiry < 0 or expiry % 1 ~= 0 then
    error('leasehold: the expiry given is no whole number of milliseconds', 0)
  end

  local seen = redis.call('GET', guard)
  if seen then
    local seen_high, seen_low = halves(seen)
    if not seen_high then
      error('leasehold: the guard key holds something that is no fence', 0)
    end
    if high < seen_high or (high == seen_high and low < seen_low) then
      return false, seen
    end
  end

  if expiry > 0 then
    redis.call('SET', guard, fence, 'PX', expiry_ms)
  else
    redis.call('SET', guard, fence)
  end
  return true
end
