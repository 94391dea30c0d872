-- Extend several locks from now, all or none; never creates, never adds.
-- KEYS    for each lock: lock, fence, queue, gone; last the lease's order of extensions
-- ARGV    1 token  2 ttl_ms from now  3 fencing token that each must have seen, or 0  4 fence_ms
--         5 extensions sent so far, with this one
--         6 -1: a renewal, never shortens; 0: an extension; > 0: one that outdates earlier requests for that many ms
-- Returns 1 extended, 0 not the holder of all; > 1: extended, and one lasts for that many ms, longer than was asked for
local ends = #KEYS - #KEYS % 4
local order_key = KEYS[ends + 1]
for at = 1, ends, 4 do
  if redis.call('GET', KEYS[at]) ~= ARGV[1] then
    return 0
  end
end
-- #include order
-- #include stored_fence
local fence = tonumber(ARGV[3])
local seen = {}
for at = 2, fence > 0 and ends or 0, 4 do
  seen[at] = stored_fence(redis.call('GET', KEYS[at]) or '0')
  if not seen[at] then
-- #include bad_fence
    return bad_fence(KEYS[at])
  end
end
local longest_ms = 1
for at = 1, ends, 4 do
  local lasting_ms = lasting(redis.call('PTTL', KEYS[at]), tonumber(ARGV[2]), order_key, ARGV[5], ARGV[6])
  longest_ms = math.max(longest_ms, lasting_ms)
  -- Written also where nothing changes, so that WAIT behind it speaks of all that was written before.
  redis.call('PEXPIRE', KEYS[at], lasting_ms)
  if fence > 0 and seen[at + 1] < fence then
    redis.call('SET', KEYS[at + 1], string.format('%.0f', fence), 'PX', ARGV[4])
  end
end
mark(order_key, ARGV[5], ARGV[6])
return longest_ms > tonumber(ARGV[2]) and longest_ms or 1
