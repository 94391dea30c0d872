-- Acquire a lock, or take a place in its queue.
-- KEYS    1 lock  2 fence  3 queue  4 gone
-- ARGV    1 token  2 ttl_ms  3 "try", "wait", or a number: wait unless that many wait  4 arrival_us as an earlier reply gave it, or minus the µs waited so far
--         5 fence_ms  6 claim_ms  7 prefix of inboxes
--         8 a token that is released with this call, or none  9 the last fencing token of its block  10 the last it used
-- Returns {1, fencing token}                                            granted (also to a repeat)
--         {1, fencing token, 1}   granted to a tenure, and no one waits: its client is told of the first who does
--         {0, holder's remaining ms (-1: no ttl; less where its client has gone), holder, place in the queue (-1: not queued), arrival_us}
--         {0, 0, "", place, arrival_us}       free, but its queue is not gone through: ask again at once
--         {-1}                                                          this token was given back before
-- #include holder
-- #include server_time
local lock, fence_key, queue, gone = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, ttl_ms, fence_ms, inboxes = ARGV[1], ARGV[2], ARGV[5], ARGV[7]
local waits = ARGV[3] ~= 'try'

-- Who waits is likely to find it held: then there is less to look at.
local holder = waits and not ARGV[8] and holder_of(lock)
if not holder then
-- #include fence
  if ARGV[8] and redis.call('GET', lock) == ARGV[8] and not redis.call('ZSCORE', gone, token) then
    redis.call('DEL', lock)
-- #include unblock
    unblock(fence_key, ARGV[9], ARGV[10], fence_ms)
  end
  -- Free, and no waiters: first, since it is the most frequent case and should cost least.
  if redis.call('EXISTS', lock, queue, gone) == 0 then
    local fence, wrong = next_fence(fence_key, fence_ms, now_us, token)
    if not fence then
      return wrong
    end
    redis.call('SET', lock, token, 'PX', ttl_ms)
    return {1, fence, string.sub(token, -1) == '+' and 1 or nil}
  end
  holder = holder_of(lock)
end

if redis.call('ZRANK', gone, token) then
  return {-1}
end
if holder == token then
-- #include fence
  -- A late repeat must not shorten what was extended since.
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), tonumber(ttl_ms)))
-- #include stored_fence
  -- What it was told before; another one where that was forgotten.
  local last = stored_fence(redis.call('GET', fence_key) or '')
  if last then
    return {1, last + 1 - fences_of(token)}
  end
  local fence, wrong = next_fence(fence_key, fence_ms, now_us, token)
  return fence and {1, fence} or wrong
end

-- #include inboxes
local gone_ms
if holder and string.find(holder, '!%d+$') then
-- #include crash
  local crash = fence_key .. ':crash'
  gone_ms = gone_in_ms(crash, holder, redis.call('PTTL', lock))
  if gone_ms and gone_ms <= 0 then
    redis.call('DEL', lock, crash)
    holder, gone_ms = nil, nil
  end
end
local arrival, new, handed_over = tonumber(ARGV[4]), false, false
if waits then
-- #include enqueue
end
if not holder then
-- #include fence
-- #include queue
  -- The last holder's time ran out: the queue goes first, and the client that asks may be its head.
  holder = next_waiter(queue, token)
  if holder == nil or holder == token then
    redis.call('ZREM', queue, token)
    local fence, wrong = next_fence(fence_key, fence_ms, now_us, token)
    if not fence then
      return wrong
    end
    redis.call('SET', lock, token, 'PX', ttl_ms)
    return {1, fence}
  end
  if holder then
    hand_over(lock, fence_key, holder, ARGV[6], fence_ms)
    handed_over = true
  end
end
if holder and string.sub(holder, -1) == '+' then
-- #include send
-- #include wanted
  tell_keeper(holder, not handed_over and queue)
end
local remaining_ms = gone_ms or holder and redis.call('PTTL', lock) or 0
-- #include not_yet
