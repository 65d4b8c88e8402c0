-- What it takes to get a lease.
--
-- in: expire_and_grant.lua

-- Reads what is wanted of a lock.
local function wanted_of(i)
  local token, what = asked(i)
  if sub(what, 1, 1) == '=' then
    local ttl, place, most, window, beat, behind, count, mode, ticket, channel, profile =
      match(what, '^= (%d+) (%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%l) 1 (%d+) (%S+) (.*)$')
    return {
      token = token, ttl = ttl + 0, count = count + 0, profile = profile, mode = mode, permits = 1, limit = 0,
      preferred = false, close = 0, channel = channel, ticket = ticket, beat = beat, window = window + 0,
      behind = behind, place = tonumber(place), most = tonumber(most),
    }
  end
  local ttl, count, profile, more = match(what, '^[-+] (%d+) (%d+) ([^ ]+ [^ ]* [^ ]*)(.*)$')
  local wanted = {
    token = token, ttl = ttl + 0, count = count + 0, profile = profile,
    mode = 'x', permits = 1, limit = 0, preferred = false, close = 0,
  }
  if more ~= '' then
    local permits, limit, preferred, length, rest
    wanted.mode, permits, limit, preferred, length, rest =
      match(more, '^ (%l) (%d+) (%d+) (%d) (%d+)(.*)$')
    wanted.permits, wanted.limit = permits + 0, limit + 0
    wanted.preferred, wanted.close = preferred == '1', length + 0
    if rest ~= '' then
      local window, place, most
      wanted.channel, wanted.ticket, wanted.beat, window, wanted.behind, place, most =
        match(rest, '^ (%S+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+)$')
      if window then
        wanted.window = window + 0
        if place ~= '-' then wanted.place = place + 0 end
        if most ~= '-' then wanted.most = most + 0 end
      else
        local its_epoch, last = match(rest, '^ after (%d+) (%d+)$')
        wanted.after = {epoch = its_epoch + 0, last = last + 0}
      end
    end
  end
  return wanted
end

-- Says why the lock can't be used as asked at all. Whoever has something of a semaphore already
-- came under the limit of that time.
local function refusal(lock, wanted, has_some)
  if lock.holder or lock.holders > 0 or lock.waiters > 0 or lock.closed > 0 then
    local resized = lock.limit > 0 and wanted.limit > 0
    if lock.limit ~= wanted.limit and not (has_some and resized) then
      return {'wrong-kind', lock.limit}
    end
  end
  if wanted.mode == 'p' and wanted.permits > wanted.limit then return {'too-many-permits'} end
end

-- Whether it has the bond of those who hold the lock: behind others that wait for them it might wait
-- for itself.
local function has_bond(lock, wanted)
  return wanted.mode == 'j' and lock.holders > 0 and lock.taken == wanted.permits
end

-- Whether the lock is to be had by somebody who has nothing of it.
local function is_free(lock, wanted)
  if lock.closed > 0 or not admits(lock, wanted.mode, wanted.permits, wanted.limit) then
    return false
  end
  local after = wanted.after
  if after and (after.epoch ~= lock.epoch or after.last ~= lock.first + lock.count - 1) then
    return false
  end
  local head = head_of(lock)
  if not head or has_bond(lock, wanted) then return true end
  if wanted.place and may_have_given(lock, wanted.place) then return wanted.place < head end
  return wanted.preferred and head >= $BEHIND
end

local function grant(lock, wanted)
  issue(lock, wanted.count)
  lock.limit = wanted.limit
  close(lock, wanted.close)
  if wanted.mode == 'x' then
    lock.holder, lock.expires = wanted.token, now + wanted.ttl * 1000
    lock.granted, lock.profile = now, wanted.profile
    keep_until(lock, lock.expires)
  else
    add_hold(lock, {
      mode = wanted.mode, permits = wanted.permits, token = wanted.token, profile = wanted.profile,
      expires = now + wanted.ttl * 1000, granted = now,
      epoch = lock.epoch, first = lock.first, count = lock.count,
    })
  end
end

-- Lets the lease that the token has run on, and sets how many times it is held.
local function prolong(lock, wanted, hold)
  local holds, ends = match(wanted.profile, '^%d+'), now + wanted.ttl * 1000
  lock.dirty = true
  if not hold then
    if ends > lock.expires then
      lock.expires = ends
      keep_until(lock, ends)
    end
    lock.profile = holds .. match(lock.profile, '^%d+(.*)$')
    return {'already', lock.epoch, lock.first, lock.count, holds + 0}
  end
  if ends > hold.expires then
    hold.expires = ends
    will_end(lock, hold)
  end
  hold.profile = holds .. match(hold.profile, '^%d+(.*)$')
  put_hold(lock, hold)
  return {'already', hold.epoch, hold.first, hold.count, holds + 0}
end
