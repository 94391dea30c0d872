-- Release a reader, writer or upgrade and let in who is next; also leaves the queue, and gives back what may be held.
-- KEYS    1 lock  2 fence  3 queue  4 gone  5 readers  6 upgraded
-- ARGV    1 token  2 fence_ms  3 claim_ms  4 prefix of inboxes
--         5 tombstone_ms: > 0 leaves the queue too, and refuses this token for that long (a delayed acquire may follow)
-- Returns 2 released and others let in, 1 released, 0 was not a holder
--         3 released, -1 was not a holder; the queue is not gone through: ask again
-- #include server_time
-- #include limits

-- No waiters: first, since it is the most frequent case and should cost least.
if ARGV[5] == '0' and redis.call('EXISTS', KEYS[3], KEYS[6]) == 0 then
  local held = redis.call('GET', KEYS[1])
  if held == ARGV[1] and redis.call('EXISTS', KEYS[5]) == 0 then
    redis.call('DEL', KEYS[1])
    return 1
  end
  local over_ms = held == SHARED and redis.call('ZSCORE', KEYS[5], ARGV[1])
  if over_ms and tonumber(over_ms) > now_ms and redis.call('ZCARD', KEYS[5]) == 1 then
    redis.call('DEL', KEYS[1], KEYS[5])
    return 1
  end
end

local token, inboxes, tombstone_ms = ARGV[1], ARGV[4], tonumber(ARGV[5])
-- #include holder
-- #include readers
local holder = current()
local result = reads(token, holder) and 1 or 0
purge(PURGE_MAX)
redis.call('ZREM', readers, token)
if tombstone_ms > 0 then
  redis.call('ZREM', queue, token)
end
if holder == token then
  result = 1
  holder = nil
  if redis.call('GET', upgraded) == token then
    redis.call('DEL', upgraded)
  end
end
if not holder or holder == SHARED then
-- #include fence
-- #include let_readers_in
  mirror()
  local _, others, more = let_in(nil, 0, tonumber(ARGV[3]), ARGV[2])
  if more then
    result = result == 1 and 3 or -1
  elseif result == 1 and others > 0 then
    result = 2
  end
end
-- #include gave_back
