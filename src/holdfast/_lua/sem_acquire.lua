-- Acquire permits of a semaphore, or take a place in its queue.
-- KEYS    1 limit  2 fence  3 queue  4 gone  5 holders
-- ARGV    1 token  2 ttl_ms  3 "try" or "wait"  4 arrival_us as an earlier reply gave it, or 0
--         5 fence_ms  6 claim_ms  7 prefix of inboxes  8 declared limit, or 0: whatever is stored
-- Returns {1, fencing token}                                            granted (also to a repeat)
--         {0, ms until a look is worth it, a holder, place (-1: not queued), arrival_us}
--         {-1}                                                          this token was given back before
--         {-2, stored limit (0: none)}                                  the declared limit is another one
--         {-3, stored limit}                                            more permits asked for than there are
-- #include fence
-- #include moment

-- Nobody waits, and the limit is the declared one: first, since it is the most frequent case and should cost least.
if redis.call('EXISTS', KEYS[3], KEYS[4]) == 0 and redis.call('GET', KEYS[1]) == ARGV[8] .. ' ' .. ARGV[8] then
  local asked_ms = tonumber(ARGV[2])
  local free = tonumber(ARGV[8]) - (tonumber(string.match(ARGV[1], '^[^:]*:(%d+)%.')) or 1)
  if redis.call('EXISTS', KEYS[5]) == 1 then
    for _, other in ipairs(redis.call('ZRANGEBYSCORE', KEYS[5], '(' .. string.format('%.0f', now_ms), '+inf')) do
      free = other == ARGV[1] and -1 or free - (tonumber(string.match(other, '^[^:]*:(%d+)%.')) or 1)
      if free < 0 then
        break
      end
    end
  end
  if free >= 0 then
    redis.call('ZADD', KEYS[5], now_ms + asked_ms, ARGV[1])
    if redis.call('PTTL', KEYS[5]) <= asked_ms + 30000 then
      redis.call('PEXPIRE', KEYS[5], asked_ms + 60000)
    end
    redis.call('PEXPIRE', KEYS[1], ARGV[5] + asked_ms)
    return {1, next_fence(KEYS[2], ARGV[5], now_us)}
  end
end

-- #include permits
local token, ttl_ms, waits = ARGV[1], tonumber(ARGV[2]), ARGV[3] == 'wait'
local arrival, fence_ms, claim_ms, inboxes = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), ARGV[7]
local wanted, weight = tonumber(ARGV[8]), weight_of(token)
local limit, declared = stored_limit()

if redis.call('SISMEMBER', gone, token) == 1 then
  return {-1}
end
if is_held(token) then
  -- GT: a late repeat must not shorten what was extended since.
  redis.call('ZADD', holders, 'GT', plain(now_ms + ttl_ms), token)
  if limit then
    keep(limit, declared, fence_ms)
  end
  return {1, next_fence(fence_key, fence_ms)}
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

local function grant()
  if redis.call('EXISTS', queue) == 1 or used() + weight > limit then
    return nil
  end
  redis.call('ZADD', holders, plain(now_ms + ttl_ms), token)
  return next_fence(fence_key, fence_ms)
end

local fence = grant()
if not fence and waits then
  if arrival == 0 then
    arrival = now_us
  end
  -- LT: a late repeat of the first try may have queued us anew meanwhile; the true arrival is the earliest.
  if redis.call('ZADD', queue, 'LT', plain(arrival), token) == 0 and ARGV[4] == '0' then
    arrival = tonumber(redis.call('ZSCORE', queue, token))
  end
  fence = advance(token, ttl_ms, limit, claim_ms, fence_ms, inboxes)
elseif not fence then
  advance(nil, 0, limit, claim_ms, fence_ms, inboxes)
  fence = grant()
end
redis.call('ZREMRANGEBYSCORE', holders, '-inf', plain(now_ms))
keep(limit, declared, fence_ms)
if fence then
  return {1, fence}
end
local due = redis.call('ZRANGEBYSCORE', holders, '(' .. plain(now_ms), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local remaining_ms = due[1] and tonumber(due[2]) - now_ms or 1
local place = -1
if waits then
  place = redis.call('ZRANK', queue, token) or -1
  redis.call('PEXPIRE', queue, plain(remaining_ms + 60000))
end
return {0, remaining_ms, due[1] or '', place, arrival}
