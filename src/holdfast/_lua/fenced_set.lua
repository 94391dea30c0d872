-- Write a key, or delete it, unless a newer fencing token has written it before.
-- KEYS    1 key  2 where the newest token seen is kept
-- ARGV    1 fencing token  2 new value  3 ttl_ms of the value, 0: without, -1: delete it  4 how long the token is remembered, ms
-- Returns 0 written, or the newer token that has been seen
-- #include stored_fence
-- The last one there is, which no fencing token comes after.
local LAST_FENCE = '9007199254740991'
local seen = redis.call('GET', KEYS[2])
if seen and seen ~= LAST_FENCE and select(2, stored_fence(seen)) ~= '' then
-- #include bad_fence
  return bad_fence(KEYS[2])
end
if seen and tonumber(seen) > tonumber(ARGV[1]) then
  return seen
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[4])
if ARGV[3] == '-1' then
  redis.call('DEL', KEYS[1])
elseif ARGV[3] == '0' then
  redis.call('SET', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 0
