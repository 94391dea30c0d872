-- Extend a reader, writer or upgrade from now; also confirms a pushed grant. Never creates, never adds.
-- KEYS    1 lock  2 fence  3 queue  4 gone  5 readers  6 upgraded
-- ARGV    1 token  2 ttl_ms from now  3 fence_ms  4 claim_ms  5 prefix of inboxes
-- Returns 1 extended, 0 not a holder
-- #include fence
-- #include moment
-- #include readers
local token, ttl_ms = ARGV[1], tonumber(ARGV[2])
local holder = current()
if not is_reader(token) then
  if holder ~= token then
    return 0
  end
  if redis.call('GET', upgraded) ~= token then
    return redis.call('PEXPIRE', lock, ttl_ms)
  end
  redis.call('PEXPIRE', upgraded, ttl_ms)
  mirror()
  return 1
end
if holder == token then
  settle(token, ttl_ms, tonumber(ARGV[4]), ARGV[3], ARGV[5])
  return 1
end
if not reads(token, holder) then
  return 0
end
-- Taking out what is over comes first: after such a write a server without memory lets the others pass.
redis.call('ZREMRANGEBYSCORE', readers, '-inf', plain(now_ms))
redis.call('ZADD', readers, 'XX', plain(now_ms + ttl_ms), token)
mirror()
return 1
