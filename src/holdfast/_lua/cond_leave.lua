-- Give up waiting on a condition, wherever it has led: the condition's waiters, the lock's queue, or the lock.
-- KEYS    1 lock  2 fence  3 queue  4 gone  5 condition's waiters
-- ARGV    1 token of the waiting  2 fence_ms  3 claim_ms  4 prefix of inboxes  5 bury_ms
--         6 1: a notification that had come is passed on to the next waiter
-- Returns 2 held the lock, 1 was waiting, 0 was not there
-- #include fence
-- #include queue
-- #include bury
local lock, queue, gone, waiters = KEYS[1], KEYS[3], KEYS[4], KEYS[5]
local token, bury_ms = ARGV[1], tonumber(ARGV[5])
local result = redis.call('ZREM', waiters, token)
if bury_ms > 0 then
  local holds = redis.call('GET', lock) == token
  local notified = redis.call('ZREM', queue, token) == 1 or holds
  if notified then
    result = 1
    local heir = ARGV[6] == '1' and next_waiter(waiters, ARGV[4])
    if heir then
      local time = redis.call('TIME')
      redis.call('ZADD', queue, 'NX', string.format('%.0f', time[1] * 1000000 + time[2]), heir)
      redis.call('PEXPIRE', queue, math.max(redis.call('PTTL', lock), 0) + 60000)
      if not holds and redis.call('EXISTS', lock) == 0 then
        -- Nobody will release, so nobody would hand over: it looks for itself.
        redis.call('PUBLISH', ARGV[4] .. string.match(heir, '^[^:]*'), 'ask ' .. heir)
      end
    end
  end
end
if redis.call('GET', lock) == token then
  result = 2
  local heir = next_waiter(queue, ARGV[4])
  if not heir then
    redis.call('DEL', lock)
  else
    hand_over(lock, KEYS[2], heir, ARGV[3], ARGV[2], ARGV[4])
  end
end
if bury_ms > 0 then
  bury(gone, token, bury_ms)
end
return result
