-- Look at a barrier, break it, or make it usable again.
-- KEYS    1 state (hash: generation, parties, broken)  2 arrived  3 gone
-- ARGV    1 "look", "abort" or "reset"  2 parties  3 retain_ms  4 prefix of inboxes  5 tombstone_ms of the waiters
-- Returns {1, generation, parties waiting, broken}, or {-3, parties stored}. Broken by a reset: ask again, there are more
--         parties to be told than one call tells
-- #include format
local state, arrived, gone, inboxes = KEYS[1], KEYS[2], KEYS[3], ARGV[4]
-- #include server_time
-- #include inboxes
-- #include send
-- #include barrier
local kept = redis.call('HMGET', state, 'generation', 'parties', 'broken')
if kept[2] and kept[2] ~= ARGV[2] then
  return newer_format(state, kept[2]) or {-3, tonumber(kept[2])}
end
local generation, broken = tonumber(kept[1] or 0), tonumber(kept[3] or 0)
if ARGV[1] ~= 'look' then
  tell_some(arrived, gone, ARGV[5])
  broken = (ARGV[1] == 'abort' or redis.call('ZCARD', arrived) > 0) and 1 or 0
  generation = generation + 1 - broken
  redis.call('HSET', state, 'generation', generation, 'parties', ARGV[2], 'broken', broken)
  redis.call('PEXPIRE', state, ARGV[3])
end
return {1, generation, redis.call('ZCARD', arrived), broken}
