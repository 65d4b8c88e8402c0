-- Finds the lease that ends first, of those that are not exclusive.
--
-- in:  order
-- out: lease    its entry in the order, or nil
--      who      its token
--      expires  when it ends, µs
local found = redis.call('ZRANGEBYSCORE', order, '-inf', '(-4503599627370496', 'WITHSCORES',
  'LIMIT', '0', '1')
local lease, who, expires = found[1], nil, nil
if lease then who, expires = string.sub(lease, -32), found[2] + 9007199254740992 end
