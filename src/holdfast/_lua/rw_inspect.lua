-- Look at a shared lock without changing anything.
-- KEYS    1 lock  2 fence  3 queue  4 gone  5 readers  6 upgraded
-- Returns {exclusive holder or "", its remaining ms, living readers, waiters, last fencing token}
-- #include fence
-- #include server_time
-- #include limits
-- #include holder
-- #include waiters
-- #include readers
local holder = current() or ''
local fence = stored_fence(redis.call('GET', fence_key) or '0')
if not fence then
  return bad_fence(fence_key)
end
return {
  holder == SHARED and '' or holder,
  holder == SHARED and -2 or redis.call('PTTL', redis.call('EXISTS', upgraded) == 1 and upgraded or lock),
  living_readers(),
  redis.call('ZCARD', queue),
  fence
}
