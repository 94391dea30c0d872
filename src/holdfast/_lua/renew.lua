-- Extend what is held; never create, never add.
-- KEYS    1 lock  2 the lease's order of extensions, or none for what only lengthens
-- ARGV    1 token  2 ttl_ms from now  3 extensions sent so far, with this one
--         4 -1: a renewal, never shortens; 0: an extension; > 0: one that outdates earlier requests for that many ms
-- Returns 1 extended, 0 not the holder; > 1: extended, and it lasts for that many ms, longer than was asked for
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
-- #include order
local lasting_ms = lasting(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2]), KEYS[2], ARGV[3], ARGV[4])
-- Written also where nothing changes, so that WAIT behind it speaks of all that was written before.
redis.call('PEXPIRE', KEYS[1], lasting_ms)
mark(KEYS[2], ARGV[3], ARGV[4])
return lasting_ms > tonumber(ARGV[2]) and lasting_ms or 1
