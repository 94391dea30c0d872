-- Look at a semaphore without changing anything.
-- KEYS    1 limit  2 fence  3 queue  4 gone  5 holders
-- Returns {limit (0: none is stored), declared limit, permits in use, waiters, holders, last fencing token}
-- #include fence
-- #include server_time
-- #include waiters
-- #include limits
-- #include permits
local limit, declared = stored_limit()
local fence = stored_fence(redis.call('GET', fence_key) or '0')
if not fence then
  return bad_fence(fence_key)
end
if not limit then
  count_extra(PURGE_MAX) -- a look must not take long: what others have beyond one permit each is not known
end
return {
  limit or 0,
  declared or 0,
  used() - (extra > 0 and over_by(OVER_MAX) or 0),
  redis.call('ZCARD', queue),
  redis.call('ZCOUNT', holders, '(' .. plain(now_ms), '+inf'),
  fence
}
