-- Extend what is held; never create, never add.
-- KEYS    1 lock
-- ARGV    1 token  2 ttl_ms from now
-- Returns 1 extended, 0 not the holder
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
