-- Bring a member's last fencing token up to the quorum's, while we hold the lock there.
-- KEYS    1 lock  2 fence
-- ARGV    1 token  2 fencing token  3 fence_ms
-- Returns 1 it is at least that now, 0 not the holder
-- #include fence
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local last = stored_fence(redis.call('GET', KEYS[2]) or '0')
if not last then
  return bad_fence(KEYS[2])
end
if last < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
end
return 1
