-- Extend held permits from now; also confirms a pushed grant. Never creates, never adds.
-- KEYS    1 limit  2 fence  3 queue  4 gone  5 holders  6 the lease's order of extensions
-- ARGV    1 token  2 ttl_ms from now  3 keep_ms of the limit  4 extensions sent so far, with this one
--         5 -1: a renewal, never shortens; 0: an extension; > 0: one that outdates earlier requests for that many ms
-- Returns 1 extended, 0 not a holder; > 1: extended, and it lasts for that many ms, longer than was asked for
-- #include server_time
-- #include limits
-- #include permits
-- #include order
if not is_held(ARGV[1]) then
  return 0
end
local limit, declared = stored_limit()
-- Taking out what is over comes first: after such a write a server without memory lets the others pass.
purge(RENEWAL_PURGE_MAX)
local left_ms = tonumber(redis.call('ZSCORE', holders, ARGV[1])) - now_ms
local lasting_ms = lasting(left_ms, tonumber(ARGV[2]), KEYS[6], ARGV[4], ARGV[5])
redis.call('ZADD', holders, 'XX', plain(now_ms + lasting_ms), ARGV[1])
mark(KEYS[6], ARGV[4], ARGV[5])
if limit then
  keep(limit, declared, ARGV[3])
else
  keep_holders()
end
return lasting_ms > tonumber(ARGV[2]) and lasting_ms or 1
