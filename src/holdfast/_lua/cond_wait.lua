-- Release a lock and wait on its condition in one step; then, asked again, take part in the lock's queue once notified.
-- KEYS    1 lock  2 fence  3 queue  4 gone  5 condition's waiters
-- ARGV    1 token of the waiting  2 ttl_ms  3 "wait", or "leave": the time is over, queue for the lock
--         4 arrival_us as an earlier reply gave it, or 0: this begins  5 fence_ms  6 claim_ms  7 prefix of inboxes
--         8 token of the holder that begins to wait  9 ms after which a waiter looks for itself
--         10 tombstone_ms: > 0 refuses that holder's token for that long (a delayed acquire of it may follow)
--         11 the last fencing token of the block that came with it, or none  12 the last that was used
-- Returns {1, fencing token, notified}                                  the lock is held again, by the waiting token
--         {0, ms until a look is worth it (-1: no ttl), holder, place, arrival_us, notified}
--         {0, 0, "", place, arrival_us, …}       a queue is not gone through: ask again at once
--         {-1}                                                          this token was given back before
--         {-2}                                                          the lock is not held by the holder's token
local token, fence_ms, inboxes = ARGV[1], ARGV[5], ARGV[7]
-- #include server_time
-- #include holder
local lock, fence_key, queue, gone, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

if redis.call('ZRANK', gone, token) then
  return {-1}
end
local holder = holder_of(lock)
local since = holder ~= token and redis.call('ZSCORE', waiters, token)
local begins = holder ~= token and not since and tonumber(ARGV[4]) == 0 and not redis.call('ZSCORE', queue, token)
if begins and holder ~= ARGV[8] then
  return {-2}
end
if begins or since and ARGV[3] == 'wait' then
-- #include fence
-- #include queue
-- #include ask_again
  if begins then
    if ARGV[11] then
-- #include unblock
      unblock(fence_key, ARGV[11], ARGV[12], fence_ms)
    end
    since, holder = now_us, nil
    redis.call('ZADD', waiters, string.format('%.0f', since), token)
    if tonumber(ARGV[10] or 0) > 0 then
      redis.call('ZREM', queue, ARGV[8])
-- #include tombstone
      leave_tombstones(gone, {ARGV[8]}, ARGV[10])
    end
-- #include trim
    trim(waiters, redis.call('ZRANK', waiters, token), TRIM_FIRST)
  end
  redis.call('PEXPIRE', waiters, tonumber(ARGV[9]) + SLACK_MS)
  local passed = holder and 0 or pass_on(lock, fence_key, queue, ARGV[6], fence_ms)
  return {0, ask_again_ms(token, passed < 0 and 0 or tonumber(ARGV[9]), 0, since), '', 0, tonumber(since)}
end

-- Notified, out of time, or forgotten by the server (which counts as notified): on to the lock. A waiter taken out
-- of its queue for a claim that ended comes back to its old place, or to the one among the waiters, which is earlier.
local notified = since and redis.call('ZREM', waiters, token) == 1 and 0 or 1
if notified == 0 or redis.call('ZSCORE', queue, token) then
  ARGV[4] = '0'
end
ARGV[8] = nil
local function acquire()
-- #include acquire
end

local reply = acquire()
if (reply[1] or -1) >= 0 then
  reply[#reply + 1] = notified
end
return reply
