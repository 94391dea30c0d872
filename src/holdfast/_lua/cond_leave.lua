-- Give up waiting on a condition, wherever it has led: the condition's waiters, the lock's queue, or the lock.
-- KEYS    1 lock  2 fence  3 queue  4 gone  5 condition's waiters
-- ARGV    1 token of the waiting  2 fence_ms  3 claim_ms  4 prefix of inboxes  5 tombstone_ms
--         6 1: a notification that had come is passed on to the next waiter
-- Returns 2 held the lock, 1 was waiting, 0 was not there
--         3 was there, -1 was not; a queue is not gone through: ask again
local token, inboxes, tombstone_ms = ARGV[1], ARGV[4], tonumber(ARGV[5])
-- #include server_time
-- #include fence
-- #include queue
-- #include wanted
local lock, queue, gone, waiters = KEYS[1], KEYS[3], KEYS[4], KEYS[5]
local result = redis.call('ZREM', waiters, token)
if tombstone_ms > 0 then
  local holds = redis.call('GET', lock) == token
  local notified = holds or redis.call('ZSCORE', queue, token)
  if notified then
    result = 1
    local following = ARGV[6] == '1' and next_waiter(waiters) or nil
    if ARGV[6] == '1' and looks_left <= 0 and not following and redis.call('EXISTS', waiters) == 1 then
      return 3 -- what it was told is passed on by the next call: until then it stays where it is
    end
    redis.call('ZREM', queue, token)
    if following then
      redis.call('ZADD', queue, 'NX', string.format('%.0f', now_us), following)
      redis.call('PEXPIRE', queue, math.max(redis.call('PTTL', lock), 0) + SLACK_MS)
      tell_keeper(redis.call('GET', lock), queue)
      if not holds and redis.call('EXISTS', lock) == 0 then
        -- There is no release to hand over to it: it looks for itself.
        send(following, 'ask ' .. following)
      end
    end
  end
end
local holder = redis.call('GET', lock)
if holder == token or not holder then
  if holder == token then
    result = 2
  end
  if pass_on(lock, KEYS[2], queue, ARGV[3], ARGV[2]) < 0 then
    result = result > 0 and 3 or -1
  end
end
-- #include gave_back
