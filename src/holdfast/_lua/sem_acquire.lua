-- Acquire permits of a semaphore, or take a place in its queue.
-- KEYS    1 limit  2 fence  3 queue  4 gone  5 holders
-- ARGV    1 token  2 ttl_ms  3 "try", "wait", or a number: wait unless that many wait  4 arrival_us as an earlier reply gave it, or 0
--         5 fence_ms  6 claim_ms  7 prefix of inboxes  8 declared limit, or 0: whatever is stored
-- Returns {1, fencing token}                                            granted (also to a repeat)
--         {0, ms until a look is worth it, a holder, place (-1: not queued), arrival_us}
--         {0, 0, "", place, arrival_us}          the queue is not gone through: ask again at once
--         {-1}                                                          this token was given back before
--         {-2, stored limit (0: none)}                                  the declared limit is another one
--         {-3, stored limit}                                            more permits asked for than there are
-- #include fence
-- #include server_time
-- #include limits

-- No waiters, and the limit is the declared one: first, since it is the most frequent case and should cost least.
if redis.call('EXISTS', KEYS[3], KEYS[4]) == 0 and redis.call('GET', KEYS[1]) == ARGV[8] .. ' ' .. ARGV[8] then
  local asked_ms = tonumber(ARGV[2])
  local weight = tonumber(string.match(ARGV[1], '^[^:]*:(%d+)%.')) or 1
  -- No holder has more than one permit, or the limit's key would say so.
  local stand = redis.call('ZCARD', KEYS[5])
  local free = tonumber(ARGV[8]) - stand
  if free <= 0 then
    local over = redis.call('ZCOUNT', KEYS[5], '-inf', string.format('%.0f', now_ms))
    free = free + over
    if over > 0 then
      redis.call('ZREMRANGEBYRANK', KEYS[5], 0, math.min(over, PURGE_MAX) - 1)
    end
  end
  if weight == 1 and free > 0 and redis.call('ZADD', KEYS[5], 'NX', now_ms + asked_ms, ARGV[1]) == 1 then
    local fence, wrong = next_fence(KEYS[2], ARGV[5], now_us)
    if not fence then
      redis.call('ZREM', KEYS[5], ARGV[1])
      return wrong
    end
    if redis.call('PTTL', KEYS[5]) <= asked_ms + SLACK_MS / 2 then
      redis.call('PEXPIRE', KEYS[5], asked_ms + SLACK_MS)
    end
    redis.call('PEXPIRE', KEYS[1], ARGV[5] + asked_ms)
    return {1, fence}
  end
end

local token, ttl_ms, waits = ARGV[1], tonumber(ARGV[2]), ARGV[3] ~= 'try'
local arrival, fence_ms, claim_ms, inboxes = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), ARGV[7]
-- #include permits
-- #include let_in
local wanted, weight = tonumber(ARGV[8]), weight_of(token)
local limit, declared = stored_limit()
local lost = not limit

if redis.call('ZRANK', gone, token) then
  return {-1}
end
if is_held(token) then
  -- GT: a late repeat must not shorten what was extended since.
  redis.call('ZADD', holders, 'GT', plain(now_ms + ttl_ms), token)
  if limit then
    -- Who was let in goes on with what one call could not do.
    if redis.call('EXISTS', queue) == 1 then
      purge(PURGE_MAX)
      let_in(limit, nil, 0, claim_ms, fence_ms)
    end
    keep(limit, declared, fence_ms)
  end
  local fence, wrong = next_fence(fence_key, fence_ms, now_us)
  return fence and {1, fence} or wrong
end
if not limit then
  limit, declared = wanted, wanted
  if limit == 0 then
    return {-2, 0}
  end
elseif wanted > 0 and wanted ~= limit and wanted ~= declared then
  return {-2, limit}
end
if weight > limit then
  return {-3, limit}
end
if lost then
  count_extra(0) -- of all, once: from now on it is stored
end

local function grant()
  if redis.call('EXISTS', queue) == 1 or used() + weight > limit then
    return nil
  end
  local fence, wrong = next_fence(fence_key, fence_ms, now_us)
  if fence then
    put(token, weight, ttl_ms)
  else
    no_fence = wrong
  end
  return fence
end

local late = purge(PURGE_MAX)
local fence, new, more, _ = grant()
if no_fence then
  return no_fence
elseif not fence and waits then
-- #include enqueue
  fence, _, more = let_in(limit, token, ttl_ms, claim_ms, fence_ms)
elseif not fence then
  _, _, more = let_in(limit, nil, 0, claim_ms, fence_ms)
  fence = grant()
end
keep(limit, declared, fence_ms)
if fence then
  return {1, fence}
elseif no_fence then
  return no_fence
end
local due = redis.call('ZRANGEBYSCORE', holders, '(' .. plain(now_ms), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local remaining_ms = due[1] and tonumber(due[2]) - now_ms or 1
if more or late then
  remaining_ms, due = 0, {}
end
local holder = due[1]
-- #include not_yet
