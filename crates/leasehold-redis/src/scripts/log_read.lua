-- Returns the last events in the log of a lock, the newest first.
--
-- KEYS[1]  the log
-- ARGV[1]  how many events at most
--
-- Returns each as `{time-number, {name, value, …}}`, the time in ms since the Unix epoch.
return redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', ARGV[1])
