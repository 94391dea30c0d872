-- Look at a lock without changing anything.
-- KEYS    1 lock  2 fence  3 queue
-- Returns {holder (its first HOLDER_BYTES) or "", remaining ms (-1: no ttl, -2: free), last fencing token, waiters}
-- #include fence
-- #include limits
-- #include holder
local fence = stored_fence(redis.call('GET', KEYS[2]) or '0')
if not fence then
  return bad_fence(KEYS[2])
end
return {
  holder_of(KEYS[1]) or '',
  redis.call('PTTL', KEYS[1]),
  fence,
  redis.call('ZCARD', KEYS[3])
}
