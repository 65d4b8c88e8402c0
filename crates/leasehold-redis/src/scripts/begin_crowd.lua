-- Empties the crowd before its first member comes: what stands in a crowd that nobody refers to
-- was left by a record that is gone.
--
-- in:  the locals of load, settled, crowd, order
if taken == 0 and not head then
  -- What is not a crowd is not ours to delete: these two fail then.
  redis.call('HLEN', crowd)
  redis.call('ZCARD', order)
  redis.call('DEL', crowd, order)
end
