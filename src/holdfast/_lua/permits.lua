-- Part: leased permits. Needs fence and moment; KEYS 1 limit 2 fence 3 queue 4 gone 5 holders.
-- Holders stand in a sorted set, each scored with the ms at which its own time is over; how many permits a token
-- is about is in its middle: `<k>.…`. The limit's key holds two numbers: the limit of now, and the declared one.
local limit_key, fence_key, queue, gone, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local function plain(number)
  return string.format('%.0f', number)
end

local function weight_of(token)
  return tonumber(string.match(token, '^[^:]*:(%d+)%.')) or 1
end

local function stored_limit()
  local limit, declared = string.match(redis.call('GET', limit_key) or '', '^(%d+) (%d+)$')
  return tonumber(limit), tonumber(declared)
end

local function used()
  local sum = 0
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', holders, '(' .. plain(now_ms), '+inf')) do
    sum = sum + weight_of(token)
  end
  return sum
end

local function is_held(token)
  local over_ms = redis.call('ZSCORE', holders, token)
  return over_ms and tonumber(over_ms) > now_ms
end

-- Keep the holders as long as the last of them needs; returns how long that is.
local function keep_holders()
  local last = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')
  local left_ms = last[2] and math.max(tonumber(last[2]) - now_ms, 0) or 0
  redis.call('PEXPIRE', holders, plain(left_ms + 60000))
  return left_ms
end

-- Keep all keys for as long as they are needed: the holders' last moment, and a day for the limit.
local function keep(limit, declared, keep_ms)
  local left_ms = keep_holders()
  redis.call('SET', limit_key, plain(limit) .. ' ' .. plain(declared), 'PX', plain(tonumber(keep_ms) + left_ms))
end

-- Grant from the head of the queue as long as it fits; what comes after the head waits, however small it is.
-- `me` is the caller's own token in the queue, if any: it gets its whole ttl and no message.
-- Returns the caller's fencing token or nil, and how many others were granted.
local function advance(me, ttl_ms, limit, claim_ms, fence_ms, inboxes)
  local mine, others, taken = nil, 0, nil
  for _ = 1, 1000 do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then
      break
    end
    local inbox = inboxes .. string.match(head, '^[^:]*')
    local weight = weight_of(head)
    taken = taken or used()
    if head ~= me and tonumber(redis.call('PUBSUB', 'NUMSUB', inbox)[2]) == 0 then
      redis.call('ZREM', queue, head)
    elseif weight > limit then
      -- The limit was lowered beneath it: it can never be granted, and is told so when it asks.
      redis.call('ZREM', queue, head)
      redis.call('PUBLISH', inbox, 'ask ' .. head)
    elseif taken + weight > limit then
      break
    else
      redis.call('ZREM', queue, head)
      redis.call('ZADD', holders, plain(now_ms + (head == me and ttl_ms or claim_ms)), head)
      taken = taken + weight
      local fence = next_fence(fence_key, fence_ms)
      if head == me then
        mine = fence
      else
        others = others + 1
        redis.call('PUBLISH', inbox, 'grant ' .. head .. ' ' .. plain(fence))
      end
    end
  end
  return mine, others
end
