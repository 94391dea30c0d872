-- Part: readers beside the lock. Needs fence, limits, holder, server_time and waiters; KEYS 1 lock 2 fence 3 queue
-- 4 gone 5 readers 6 upgraded.
-- Readers stand in a sorted set, each scored with the ms at which its own time is over. While there are any, the
-- lock's key holds SHARED until the last of them is due, so that clients that only know the lock are kept out as well.
-- A reader that became the writer has its token in a key of its own: when that runs out, it is a reader as before.
-- What a token asks for is in its middle: `r.…` reads, `u<n>.…` is the upgrade of that reader, all else is exclusive.
local lock, fence_key, queue, gone, readers, upgraded = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

-- Set when a fencing token could not grow: then nothing is granted, and the caller is told.
local no_fence = false

local function plain(number)
  return string.format('%.0f', number)
end

local function is_reader(token)
  return string.find(token, '^[^:]*:r%.') ~= nil
end

-- The reader beneath an upgrade, or nil.
local function reader_of(token)
  local client, rest = string.match(token, '^([^:]*:)u%d+(%..*)$')
  return client and client .. 'r' .. rest
end

-- The exclusive holder, SHARED, or false.
local function current()
  local holder = holder_of(lock)
  if not holder or holder == SHARED then
    return redis.call('GET', upgraded) or holder
  end
  return holder
end

local function living_readers()
  return redis.call('ZCOUNT', readers, '(' .. plain(now_ms), '+inf')
end

-- Whether the token reads now. Not when another client got the lock because its key was lost.
local function reads(token, holder)
  local over_ms = redis.call('ZSCORE', readers, token)
  return over_ms and tonumber(over_ms) > now_ms
    and (not holder or holder == SHARED or reader_of(holder) == token)
end

-- Let the lock's key say what the readers' keys say. Only while it has no exclusive holder but an upgraded reader.
local function mirror()
  local last = redis.call('ZRANGE', readers, -1, -1, 'WITHSCORES')
  local left_ms = math.max(last[2] and tonumber(last[2]) - now_ms or 0, redis.call('PTTL', upgraded))
  if left_ms > 0 then
    redis.call('SET', lock, SHARED, 'PX', left_ms + 1)
    redis.call('PEXPIRE', readers, left_ms + SLACK_MS)
  elseif redis.call('ZCARD', readers) > PURGE_MAX then
    redis.call('DEL', lock) -- to free very many at once takes long: their time is over, and later calls take them out
    redis.call('PEXPIRE', readers, SLACK_MS)
  else
    redis.call('DEL', lock, readers)
  end
end

-- Take out readers whose time is over; of very many, `most`.
local function purge(most)
  if redis.call('ZCOUNT', readers, '-inf', plain(now_ms)) > most then
    redis.call('ZREMRANGEBYRANK', readers, 0, most - 1)
  else
    redis.call('ZREMRANGEBYSCORE', readers, '-inf', plain(now_ms))
  end
end

local function tell(token, message, inboxes)
  return redis.call('PUBLISH', inbox_of(token, inboxes), message)
end

-- Grant from the head of the queue as far as it goes: readers that follow each other together, a writer alone.
-- `me` is the caller's own token in the queue, if any: it gets its whole ttl and no message.
-- Returns the caller's fencing token or nil, how many others were granted, and whether there may be more to do than one
-- call does: then a client has to ask again.
local function advance(me, ttl_ms, claim_ms, fence_ms, inboxes)
  local holder = current()
  local mine, others, read = nil, 0, false
  while looks_left > 0 do
    if holder and holder ~= SHARED then
      break
    end
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then
      break
    end
    local window_ms = head == me and ttl_ms or claim_ms
    local beneath = reader_of(head)
    local granted = false
    local alone = not beneath and not is_reader(head)
    looks_left = looks_left - 1
    if head ~= me and not is_there(head, inboxes) then
      redis.call('ZREM', queue, head)
      if looks_left > 0 then
        shed(queue, inboxes, me)
      end
    elseif beneath and not reads(beneath, holder) then
      redis.call('ZREM', queue, head)
      tell(head, 'ask ' .. head, inboxes)
    elseif (alone or beneath) and living_readers() > (beneath and 1 or 0) then
      break
    else
      granted = true
    end
    if granted then
      local fence = next_fence(fence_key, fence_ms, nil, head)
      redis.call('ZREM', queue, head)
      if not fence then
        no_fence = true
        tell(head, 'ask ' .. head, inboxes)
        break
      end
      looks_left = looks_left - GRANT_LOOKS
      if alone or beneath then
        redis.call('SET', beneath and upgraded or lock, head, 'PX', plain(window_ms))
        holder, read = head, beneath ~= nil
      else
        redis.call('ZADD', readers, plain(now_ms + window_ms), head)
        holder, read = SHARED, true
      end
      if head == me then
        mine = fence
      else
        others = others + 1
        tell(head, 'grant ' .. head .. ' ' .. plain(fence) .. ' ' .. plain(window_ms), inboxes)
      end
    end
  end
  if read then
    mirror()
  end
  local more = not no_fence and looks_left <= 0 and (not holder or holder == SHARED)
    and redis.call('EXISTS', queue) == 1
  if more then
    nudge(queue, inboxes)
  end
  return mine, others, more
end

-- A reader that was handed the lock's own key (by a release that knows no readers) joins the readers.
local function settle(token, ttl_ms, claim_ms, fence_ms, inboxes)
  redis.call('DEL', lock)
  redis.call('ZADD', readers, 'GT', plain(now_ms + ttl_ms), token)
  mirror()
  advance(nil, 0, claim_ms, fence_ms, inboxes)
end
