-- Set a key if it holds what is expected; what SET … IFEQ does on newer servers.
-- KEYS    1 key
-- ARGV    1 expected value  2 new value  3 ttl_ms, 0: without, -1: keep the one it has
-- Returns 1 set, 0 it holds something else or nothing
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
if ARGV[3] == '0' then
  redis.call('SET', KEYS[1], ARGV[2])
elseif ARGV[3] == '-1' then
  redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1
