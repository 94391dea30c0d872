-- Extend held permits from now; also confirms a pushed grant. Never creates, never adds.
-- KEYS    1 limit  2 fence  3 queue  4 gone  5 holders
-- ARGV    1 token  2 ttl_ms from now  3 keep_ms of the limit
-- Returns 1 extended, 0 not a holder
-- #include fence
-- #include moment
-- #include permits
if not is_held(ARGV[1]) then
  return 0
end
-- Taking out what is over comes first: after such a write a server without memory lets the others pass.
redis.call('ZREMRANGEBYSCORE', holders, '-inf', plain(now_ms))
redis.call('ZADD', holders, 'XX', plain(now_ms + tonumber(ARGV[2])), ARGV[1])
local limit, declared = stored_limit()
if limit then
  keep(limit, declared, ARGV[3])
else
  redis.call('PEXPIRE', holders, plain(tonumber(ARGV[2]) + 60000))
end
return 1
