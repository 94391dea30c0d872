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
-- #include limits
-- #include holder
local lock, fence_key, queue, gone = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, ttl_ms, fence_ms = ARGV[1], ARGV[2], ARGV[5]
local waits = ARGV[3] ~= 'try'

-- Who waits is likely to find it held: then there is less to look at.
local holder = waits and not ARGV[8] and holder_of(lock)
if not holder then
-- #include fence
  if ARGV[8] and redis.call('GET', lock) == ARGV[8] and not redis.call('ZSCORE', gone, token) then
    redis.call('DEL', lock)
    unblock(fence_key, ARGV[9], ARGV[10], fence_ms)
  end
  -- Free, and no waiters: first, since it is the most frequent case and should cost least.
  if redis.call('EXISTS', lock, queue, gone) == 0 then
    local fence = next_fence(fence_key, fence_ms, nil, token)
    if not fence then
      return bad_fence(fence_key)
    end
    redis.call('SET', lock, token, 'PX', ttl_ms)
    if string.sub(token, -1) == '+' then
      return {1, fence, 1}
    end
    return {1, fence}
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
  local fence = same_fence(fence_key, fence_ms, token)
  return fence and {1, fence} or bad_fence(fence_key)
end

-- #include waiters
-- #include wanted
local gone_ms
if holder and string.find(holder, '!%d+$') then
-- #include crash
  local crash = fence_key .. ':crash'
  gone_ms = gone_in_ms(crash, holder, ARGV[7], redis.call('PTTL', lock))
  if gone_ms and gone_ms <= 0 then
    redis.call('DEL', lock, crash)
    holder, gone_ms = nil, nil
  end
end
local arrival, new, handed_over = tonumber(ARGV[4]), false, false
if waits then
  if arrival <= 0 then
    arrival = server_us() + arrival
  end
-- #include enqueue
end
if not holder then
-- #include fence
-- #include queue
  -- The last holder's time ran out: the queue goes first, and the client that asks may be its head.
  holder = next_waiter(queue, ARGV[7], token)
  if holder == nil or holder == token then
    redis.call('ZREM', queue, token)
    local fence = next_fence(fence_key, fence_ms, nil, token)
    if not fence then
      return bad_fence(fence_key)
    end
    redis.call('SET', lock, token, 'PX', ttl_ms)
    return {1, fence}
  end
  if holder then
    hand_over(lock, fence_key, holder, ARGV[6], fence_ms, ARGV[7])
    handed_over = true
  end
end
tell_keeper(holder, ARGV[7], not handed_over and queue)
local remaining_ms = gone_ms or holder and redis.call('PTTL', lock) or 0
-- #include not_yet
