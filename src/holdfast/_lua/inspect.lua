-- Look at a lock without changing anything.
-- KEYS    1 lock  2 fence  3 queue
-- Returns {holder or nil as "", remaining ms (-1: for ever, -2: free), last fencing token, waiters}
return {
  redis.call('GET', KEYS[1]) or '',
  redis.call('PTTL', KEYS[1]),
  tonumber(redis.call('GET', KEYS[2]) or 0),
  redis.call('ZCARD', KEYS[3])
}
