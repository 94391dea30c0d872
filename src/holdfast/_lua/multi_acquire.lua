-- Acquire several locks with one token: all at once, or waiting, one after the other in the order of the keys.
-- KEYS    for each lock: lock, fence, queue, gone
-- ARGV    1 token  2 ttl_ms  3 "try": all or none; "wait": take up to the first that is busy, and queue there
--         4 arrival_us as an earlier reply gave it, or 0  5 fence_ms  6 claim_ms  7 prefix of inboxes
-- Returns {1, fencing token, the same for all}                          all granted (also to a repeat)
--         {0, ms until a look is worth it (-1: no ttl), holder, place (-1: not queued), arrival_us}
--         {0, 0, "", place, arrival_us}          a queue is not gone through: ask again at once
--         {-1}                                                          this token was given back before
-- #include server_time

-- #include fence

-- One fencing token for all, greater than each of theirs. Or nil, and an error.
local function fence_for_all()
  local fence, least = 0, math.huge
  for at = 2, #KEYS, 4 do
    local its, wrong = next_fence(KEYS[at], ARGV[5], now_us)
    if not its then
      return nil, wrong
    end
    fence, least = math.max(fence, its), math.min(least, its)
  end
  if least < fence then
-- #include stored_fence
    for at = 2, #KEYS, 4 do
      local _, counted = stored_fence(redis.call('GET', KEYS[at]))
      redis.call('SET', KEYS[at], string.format('%.0f%s', fence, counted), 'PX', ARGV[5])
    end
  end
  return fence
end

-- All are free, and have no waiters: first, since it is the most frequent case and should cost least.
local watched = {}
for at = 1, #KEYS, 4 do
  watched[#watched + 1] = KEYS[at]
  watched[#watched + 1] = KEYS[at + 2]
  watched[#watched + 1] = KEYS[at + 3]
end
if redis.call('EXISTS', unpack(watched)) == 0 then
  local fence, wrong = fence_for_all()
  if wrong then
    return wrong
  end
  for at = 1, #KEYS, 4 do
    redis.call('SET', KEYS[at], ARGV[1], 'PX', ARGV[2])
  end
  return {1, fence}
end

local token, ttl_ms, fence_ms, inboxes = ARGV[1], tonumber(ARGV[2]), ARGV[5], ARGV[7]
local waits = ARGV[3] == 'wait'
-- #include holder
-- #include queue
looks_left = LOOKS_MAX / 2 -- the names take their time as well
-- #include wanted
local arrival = tonumber(ARGV[4])
if arrival == 0 then
  arrival = now_us
end

-- What stands in the way of taking the lock whose keys begin at `at`: nothing, or its holder; "" when that takes more
-- than one call to find out.
local function busy(at)
  local holder = holder_of(KEYS[at])
  if holder == token then
    return nil
  end
  if holder or redis.call('EXISTS', KEYS[at + 2]) == 0 then
    return holder
  end
  -- Its holder's time ran out: the first waiter whose process is still there comes before us.
  while looks_left > 0 do
    local head = redis.call('ZRANGE', KEYS[at + 2], 0, 0)[1]
    if not head then
      return nil
    end
    marks = KEYS[at + 3]
    if head == token or not gone_of({head})[1] then
      return head
    end
-- #include shed
    shed(KEYS[at + 2], token)
  end
  return ''
end

-- The first lock that is busy, of those whose keys begin at `from` or behind it, and its holder.
local function first_busy(from)
  for at = from, #KEYS, 4 do
    local holder = busy(at)
    if holder then
      return at, holder
    end
  end
end

for at = 1, #KEYS, 4 do
  if redis.call('ZRANK', KEYS[at + 3], token) then
    return {-1}
  end
end
local blocked_at, holder = first_busy(1)
if holder == '' and redis.call('EXISTS', KEYS[blocked_at]) == 0 then
  -- A waiter may hold the first of them, and stand in a queue: it has that to give back.
  return {0, 0, '', waits and 0 or -1, waits and arrival or 0}
end
if blocked_at and not waits then
  tell_keeper(holder)
  return {0, redis.call('PTTL', KEYS[blocked_at]), holder, -1, 0}
end
if ARGV[4] == '0' then
  -- Queued by an earlier try whose answer was lost, perhaps at another lock: that one's arrival counts.
  for at = 3, #KEYS, 4 do
    arrival = math.min(arrival, tonumber(redis.call('ZSCORE', KEYS[at], token) or arrival))
  end
end
while true do
  local last = blocked_at or #KEYS + 1
  for at = 1, last - 1, 4 do
    -- Free, or ours: a late repeat must not shorten what was extended since.
    redis.call('SET', KEYS[at], token, 'PX', math.max(redis.call('PTTL', KEYS[at]), ttl_ms))
    redis.call('ZREM', KEYS[at + 2], token)
  end
  if last > #KEYS then
    break
  end
  -- Queue at the busy one. When its holder's time ran out, its queue goes first, and we may be the head of that.
  local lock, fence_key, queue = KEYS[last], KEYS[last + 1], KEYS[last + 2]
  marks = KEYS[last + 3]
  local new = redis.call('ZADD', queue, 'LT', string.format('%.0f', arrival), token) == 1
  holder = holder_of(lock)
  if not holder then
    holder = next_waiter(queue, token)
    if holder and holder ~= token then
      hand_over(lock, fence_key, holder, ARGV[6], fence_ms)
    end
  end
  if holder ~= nil and holder ~= token then
    tell_keeper(holder, queue)
    local remaining_ms = holder and redis.call('PTTL', lock) or 0
    if last > 1 and (remaining_ms < 0 or remaining_ms > ttl_ms / 3) then
      remaining_ms = math.floor(ttl_ms / 3) -- what we hold already has to be extended meanwhile
    end
-- #include not_yet
  end
  -- It was ours to take: on to the next busy one.
  redis.call('SET', lock, token, 'PX', ttl_ms)
  redis.call('ZREM', queue, token)
  blocked_at, holder = first_busy(last + 4)
end

local fence, wrong = fence_for_all()
return wrong or {1, fence}
