-- Acquire a lock for reading or writing, or upgrade a reader; or take a place in the queue.
-- KEYS    1 lock  2 fence  3 queue  4 gone  5 readers  6 upgraded
-- ARGV    1 token  2 ttl_ms  3 "try", "wait", or a number: wait unless that many wait  4 arrival_us as an earlier reply gave it, or 0
--         5 fence_ms  6 claim_ms  7 prefix of inboxes
-- Returns {1, fencing token}                                            granted (also to a repeat)
--         {0, ms until a look is worth it (-1: no ttl), a holder, place (-1: not queued), arrival_us}
--         {0, 0, "", place, arrival_us}          the queue is not gone through: ask again at once
--         {-1}                                                          this token was given back before
--         {-2}                                                          upgrade: not a reader any more
--         {-3}                                                          upgrade: another reader is upgrading
-- #include fence
-- #include server_time
-- #include limits

-- No waiters, and it is free, or read by others: first, since it is the most frequent case and should cost least.
if redis.call('EXISTS', KEYS[3], KEYS[4], KEYS[6]) == 0 then
  local held = redis.call('GETRANGE', KEYS[1], 0, HOLDER_BYTES - 1)
  local reads, asked_ms = string.find(ARGV[1], ':r.', 1, true), tonumber(ARGV[2])
  if held == SHARED and reads and not redis.call('ZSCORE', KEYS[5], ARGV[1])
    or held == '' and (reads or string.find(ARGV[1], ':w.', 1, true)) and redis.call('EXISTS', KEYS[1], KEYS[5]) == 0 then
    local fence, wrong = next_fence(KEYS[2], ARGV[5], now_us)
    if not fence then
      return wrong
    end
    if held == '' then
      redis.call('SET', KEYS[1], reads and SHARED or ARGV[1], 'PX', reads and asked_ms + 1 or asked_ms)
    elseif redis.call('PTTL', KEYS[1]) <= asked_ms then
      redis.call('PEXPIRE', KEYS[1], asked_ms + 1)
    end
    if reads then
      redis.call('ZADD', KEYS[5], now_ms + asked_ms, ARGV[1])
      if redis.call('PTTL', KEYS[5]) <= asked_ms + SLACK_MS / 2 then
        redis.call('PEXPIRE', KEYS[5], asked_ms + SLACK_MS)
      end
    end
    return {1, fence}
  end
end

local token, ttl_ms, waits = ARGV[1], tonumber(ARGV[2]), ARGV[3] ~= 'try'
local arrival, fence_ms, claim_ms, inboxes = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), ARGV[7]
-- #include holder
-- #include readers
-- #include let_readers_in
-- #include wanted
local reader, beneath = is_reader(token), reader_of(token)
local holder = current()

if redis.call('ZRANK', gone, token) then
  return {-1}
end
local function repeated()
  local fence, wrong = next_fence(fence_key, fence_ms, now_us)
  return fence and {1, fence} or wrong
end

-- A late repeat must not shorten what was extended since.
if holder == token and (not beneath or redis.call('GET', upgraded) == token or reads(beneath, holder)) then
  if reader then
    settle(token, ttl_ms, claim_ms, fence_ms)
  elseif redis.call('GET', upgraded) == token then
    redis.call('PEXPIRE', upgraded, math.max(redis.call('PTTL', upgraded), ttl_ms))
    mirror()
  else
    redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl_ms))
  end
  return repeated()
end
if reader and reads(token, holder) then
  redis.call('ZADD', readers, 'GT', plain(now_ms + ttl_ms), token)
  mirror()
  -- Who was let in goes on with what one call could not do.
  if redis.call('EXISTS', queue) == 1 then
    let_in(nil, 0, claim_ms, fence_ms)
  end
  return repeated()
end
if beneath then
  if not reads(beneath, holder) then
    return {-2}
  end
  local head = redis.call('ZRANGE', queue, 0, 0)[1]
  if head and head ~= token and reader_of(head) and not gone_of({head})[1] then
    return {-3}
  end
end

-- Nothing before us (an upgrade goes before all), and nothing in the way.
local function grant()
  if holder and holder ~= SHARED or not beneath and redis.call('EXISTS', queue) == 1 then
    return nil
  end
  if not reader and living_readers() > (beneath and 1 or 0) then
    return nil
  end
  local fence, wrong = next_fence(fence_key, fence_ms, now_us)
  if not fence then
    no_fence = wrong
  elseif reader then
    redis.call('ZADD', readers, plain(now_ms + ttl_ms), token)
    mirror()
  else
    redis.call('SET', beneath and upgraded or lock, token, 'PX', plain(ttl_ms))
    redis.call('ZREM', queue, token)
    if beneath then
      mirror()
    end
  end
  return fence
end

local fence, new, more, _ = grant()
if no_fence then
  return no_fence
elseif not fence and waits then
  if beneath then
    arrival = -now_us -- it stands before all
  end
-- #include enqueue
  fence, _, more = let_in(token, ttl_ms, claim_ms, fence_ms)
elseif not fence then
  _, _, more = let_in(nil, 0, claim_ms, fence_ms)
  holder = current()
  fence = grant()
end
if fence then
  return {1, fence}
elseif no_fence then
  return no_fence
end

holder = current()
tell_keeper(holder)
local remaining_ms
if more then
  holder, remaining_ms = '', 0
elseif holder and holder ~= SHARED then
  remaining_ms = redis.call('PTTL', redis.call('GET', upgraded) == holder and upgraded or lock)
else
  -- The first reader whose time may be over, but for the one that upgrades.
  local due = redis.call('ZRANGEBYSCORE', readers, '(' .. plain(now_ms), '+inf', 'WITHSCORES', 'LIMIT', 0, 2)
  local first = due[1] == beneath and 3 or 1
  holder = due[first] or ''
  remaining_ms = due[first] and tonumber(due[first + 1]) - now_ms or 1
end
-- #include not_yet
