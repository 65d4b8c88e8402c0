-- leasehold_touch(record, fence, expiry_ms, readers, shared): raises a fence record on first touch.
--
-- record     key of the fence record, one of KEYS; holds the highest fence seen, in decimal
-- fence      decimal text, as the client prints it
-- expiry_ms  decimal text: how long the record is kept after this touch; '0' keeps it for ever.
--            Another value needs a server that evicts nothing, and a user who may say INFO
-- readers    key of a second record, one of KEYS, for a resource with shared leases; else nil.
--            It holds the highest fence of shared leases, and the first record the others' fences
-- shared     true for the fence of a shared lease
--
-- Returns true when the fence passes, or false and the highest fence seen when it is stale.
-- Raises an error for a fence or a record that is not such a number; then nothing has changed.
--
-- Lua's numbers are exact up to 2^53 only, and fences go up to 2^63: they are compared as two
-- halves, never as one number. Comparing the texts would depend on the server's locale.
local function leasehold_touch(record, fence, expiry_ms, readers, shared)
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
  if shared and not readers then
    error('leasehold: a shared lease needs a guard for readers beside that for writers', 0)
  end
  if expiry > 0 then
    -- A server that evicts would drop the record before the data that it protects.
    local memory = redis.pcall('INFO', 'memory')
    local policy = type(memory) == 'string' and string.match(memory, 'maxmemory_policy:(%S+)')
    if policy ~= 'noeviction' then
      error('leasehold: a guard with an expiry needs maxmemory-policy noeviction, and the right to '
        .. 'see it (+info); this server says ' .. (policy or 'nothing') .. '. Give 0 for no expiry', 0)
    end
  end

  -- Negative, zero or positive: the fence is below, at or above the record.
  local function compared(key)
    local seen = redis.call('GET', key)
    if not seen then return 1 end
    local seen_high, seen_low = halves(seen)
    if not seen_high then
      error('leasehold: the guard key holds something that is no fence', 0)
    end
    return high ~= seen_high and high - seen_high or low - seen_low, seen
  end

  local beside_writers, writer = compared(record)
  local beside_readers, reader = 1, nil
  if readers then beside_readers, reader = compared(readers) end
  if beside_writers < 0 then return false, writer end
  if not shared and beside_readers < 0 then return false, reader end

  local key, value = record, fence
  if shared then
    key = readers
    if beside_readers < 0 then value = reader end
  end
  if expiry > 0 then
    redis.call('SET', key, value, 'PX', expiry_ms)
  else
    redis.call('SET', key, value)
  end
  return true
end
