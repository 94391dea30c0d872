-- Part: the next fencing token, greater than the last one and not below the server's time in µs, so that it
-- grows also when the last one is forgotten (FLUSHALL, a restart without data, a failover that lost writes).

-- What is stored as a fencing token, as a number, and what is behind it; nil for what cannot be one. From 2^53 on, numbers
-- are not exact here: tokens would repeat.
local FENCE_END = 9007199254740991
local function stored_fence(value)
  local digits, counted = string.match(value, '^(%-?%d+)(.*)$')
  local fence = tonumber(digits)
  if fence and fence < FENCE_END and (counted == '' or string.find(counted, '^ %d+ %d+$')) then
    return fence, counted
  end
end

-- How many are reserved for a token: one, or a block where it ends with "+", for a client that hands on among its own.
local FENCE_BLOCK = 1024
local function fences_of(token)
  return token and string.sub(token, -1) == '+' and FENCE_BLOCK or 1
end

-- #include count
-- The time in µs, once it was asked for: it stands still in a script.
local asked_us

-- The next one, or nil when what is stored cannot grow: then it stays as it is. `now_us`: the time, where the caller
-- has it. `token`: for whom; the first one of a block is returned, and the last one stored.
local function next_fence(key, fence_ms, now_us, token)
  local fence, more = now_us, fences_of(token) - 1
  if not fence and not asked_us then
    local now = redis.call('TIME')
    asked_us = now[1] * 1000000 + now[2]
  end
  fence = fence or asked_us
  -- One call for the last one and the new one: the usual case is that the new one is the greater.
  local last = redis.call('SET', key, fence + more, 'PX', fence_ms, 'GET')
  if last and not ((tonumber(last) or fence) < fence) then
    local seen, counted = stored_fence(last)
    if not seen or seen + more >= FENCE_END then
      redis.call('SET', key, last, 'PX', fence_ms)
      return nil
    end
    counted = counted_on(counted, 1, fence)
    fence = math.max(fence, seen + 1)
    redis.call('SET', key, string.format('%.0f%s', fence + more, counted), 'PX', fence_ms)
  end
  return fence
end

-- The one that a token was told which holds the lock still; another one where that was forgotten.
local function same_fence(key, fence_ms, token)
  local last = stored_fence(redis.call('GET', key) or '')
  return last and last + 1 - fences_of(token) or next_fence(key, fence_ms, nil, token)
end

-- #include format
-- The error that says so.
local function bad_fence(key)
  local WRONG_BYTES = 64
  local value = string.gsub(string.sub(redis.call('GET', key) or '', 1, WRONG_BYTES), '[^ -~]', '?')
  return newer_format(key, value) or redis.error_reply('BADFENCE the key ' .. string.gsub(key, '%c', '?') .. ' has to hold a fencing token, a whole '
    .. 'number below 2^53 - 1, and holds "' .. value .. '": set it to the last token that was given, or delete it to go '
    .. "on from the server's time")
end
