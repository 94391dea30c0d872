-- Extend a reader, writer or upgrade from now; also confirms a pushed grant. Never creates, never adds.
-- KEYS    1 lock  2 fence  3 queue  4 gone  5 readers  6 upgraded  7 the lease's order of extensions
-- ARGV    1 token  2 ttl_ms from now  3 fence_ms  4 claim_ms  5 prefix of inboxes  6 extensions sent so far, with this
--         7 -1: a renewal, never shortens; 0: an extension; > 0: one that outdates earlier requests for that many ms
-- Returns 1 extended, 0 not a holder; > 1: extended, and it lasts for that many ms, longer than was asked for
-- #include server_time
-- #include holder
-- #include readers
-- #include order
local token, ttl_ms, inboxes = ARGV[1], tonumber(ARGV[2]), ARGV[5]
local holder = current()
if not is_reader(token) then
  if holder ~= token then
    return 0
  end
  local alone = redis.call('GET', upgraded) == token and upgraded or lock
  local lasting_ms = lasting(redis.call('PTTL', alone), ttl_ms, KEYS[7], ARGV[6], ARGV[7])
  redis.call('PEXPIRE', alone, lasting_ms)
  mark(KEYS[7], ARGV[6], ARGV[7])
  if alone == upgraded then
    mirror()
  end
  return lasting_ms > ttl_ms and lasting_ms or 1
end
if holder == token then
-- #include fence
-- #include let_readers_in
  settle(token, ttl_ms, tonumber(ARGV[4]), ARGV[3])
  mark(KEYS[7], ARGV[6], ARGV[7])
  return 1
end
if not reads(token, holder) then
  return 0
end
-- Taking out what is over comes first: after such a write a server without memory lets the others pass.
purge(RENEWAL_PURGE_MAX)
local left_ms = tonumber(redis.call('ZSCORE', readers, token)) - now_ms
local lasting_ms = lasting(left_ms, ttl_ms, KEYS[7], ARGV[6], ARGV[7])
redis.call('ZADD', readers, 'XX', plain(now_ms + lasting_ms), token)
mark(KEYS[7], ARGV[6], ARGV[7])
mirror()
return lasting_ms > ttl_ms and lasting_ms or 1
