-- Part: readers beside the lock. Needs limits, holder and server_time; KEYS 1 lock 2 fence 3 queue
-- 4 gone 5 readers 6 upgraded.
-- Readers stand in a sorted set, each scored with the ms at which its own time is over. While there are any, the
-- lock's key holds SHARED until the last of them is due, so that clients that only know the lock are kept out as well.
-- A reader that became the writer has its token in a key of its own: when that runs out, it is a reader as before.
-- What a token asks for is in its middle: `r.…` reads, `u<n>.…` is the upgrade of that reader, all else is exclusive.
local lock, fence_key, queue, gone, readers, upgraded = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

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
