-- Extend several locks from now, all or none; never creates, never adds.
-- KEYS    for each lock: lock, fence, queue, gone
-- ARGV    1 token  2 ttl_ms from now  3 fencing token that each must have seen, or 0  4 fence_ms
-- Returns 1 extended, 0 not the holder of all
for at = 1, #KEYS, 4 do
  if redis.call('GET', KEYS[at]) ~= ARGV[1] then
    return 0
  end
end
local fence = tonumber(ARGV[3])
for at = 1, #KEYS, 4 do
  redis.call('PEXPIRE', KEYS[at], ARGV[2])
  if fence > 0 and tonumber(redis.call('GET', KEYS[at + 1]) or 0) < fence then
    redis.call('SET', KEYS[at + 1], string.format('%.0f', fence), 'PX', ARGV[4])
  end
end
return 1
