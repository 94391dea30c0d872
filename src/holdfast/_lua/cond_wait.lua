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
local token, ttl_ms, arrival, fence_ms, inboxes = ARGV[1], ARGV[2], tonumber(ARGV[4]), ARGV[5], ARGV[7]
-- #include server_time
-- #include fence
-- #include holder
-- #include queue
-- #include wanted
-- #include ask_again
local lock, fence_key, queue, gone, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

if redis.call('ZRANK', gone, token) then
  return {-1}
end
local holder = holder_of(lock)
if holder == token then
  -- A late repeat must not shorten what was extended since.
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), tonumber(ttl_ms)))
-- #include same_fence
  local fence, wrong = same_fence(fence_key, fence_ms)
  return fence and {1, fence, 1} or wrong
end
local notified = 1
local since = redis.call('ZSCORE', waiters, token)
if since then
  if ARGV[3] == 'wait' then
    redis.call('PEXPIRE', waiters, tonumber(ARGV[9]) + SLACK_MS)
    if not holder and pass_on(lock, fence_key, queue, ARGV[6], fence_ms) < 0 then
      return {0, 0, '', 0, tonumber(since)}
    end
    return {0, ask_again_ms(token, tonumber(ARGV[9]), 0, since), '', 0, tonumber(since)}
  end
  redis.call('ZREM', waiters, token)
  notified = 0
elseif arrival == 0 and not redis.call('ZSCORE', queue, token) then
  if holder ~= ARGV[8] then
    return {-2}
  end
  if ARGV[11] then
-- #include unblock
    unblock(fence_key, ARGV[11], ARGV[12], fence_ms)
  end
  redis.call('ZADD', waiters, string.format('%.0f', now_us), token)
  redis.call('PEXPIRE', waiters, tonumber(ARGV[9]) + SLACK_MS)
  if tonumber(ARGV[10] or 0) > 0 then
    redis.call('ZREM', queue, ARGV[8])
-- #include tombstone
    leave_tombstones(gone, {ARGV[8]}, ARGV[10])
  end
-- #include trim
  trim(waiters, redis.call('ZRANK', waiters, token), TRIM_FIRST)
  local passed = pass_on(lock, fence_key, queue, ARGV[6], fence_ms)
  return {0, ask_again_ms(token, passed < 0 and 0 or tonumber(ARGV[9]), 0, now_us), '', 0, now_us}
end

-- Notified, out of time, or forgotten by the server (which counts as notified): on to the lock. A waiter taken out
-- of its queue for a claim that ended comes back to its old place, or to the one among the waiters, which is earlier.
since = notified == 1 and arrival > 0 and arrival or now_us
redis.call('ZADD', queue, 'NX', string.format('%.0f', since), token)
if not holder then
  holder = next_waiter(queue, token)
  if holder == nil or holder == token then
    redis.call('ZREM', queue, token)
    local fence, wrong = next_fence(fence_key, fence_ms, now_us)
    if not fence then
      return wrong
    end
    redis.call('SET', lock, token, 'PX', ttl_ms)
    return {1, fence, notified}
  end
  if holder then
    hand_over(lock, fence_key, holder, ARGV[6], fence_ms)
  end
end
tell_keeper(holder, queue)
local remaining_ms = holder and redis.call('PTTL', lock) or 0
redis.call('PEXPIRE', queue, math.max(remaining_ms, 0) + SLACK_MS)
since = redis.call('ZSCORE', queue, token) or since
local place = redis.call('ZRANK', queue, token) or -1
remaining_ms = ask_again_ms(token, remaining_ms, math.max(place, 0), since)
return {0, remaining_ms, holder or '', place, tonumber(since), notified}
