-- Part: the next fencing token, greater than the last one and not below the server's time in µs, so that it
-- grows also when the last one is forgotten (FLUSHALL, a restart without data, a failover that lost writes).

-- How many are reserved for a token: one, or a block where it ends with "+", for a client that hands on among its own.
local function fences_of(token)
  local FENCE_BLOCK = 1024
  return token and string.sub(token, -1) == '+' and FENCE_BLOCK or 1
end

-- The next one; nil and an error when what is stored cannot grow: then it stays as it is. `least_us`: the time, or a later
-- one. `token`: for whom; the first one of a block is returned, and the last one stored.
local function next_fence(key, fence_ms, least_us, token)
  local fence, more = least_us, fences_of(token) - 1
  -- One call for the last one and the new one: the usual case is that the new one is the greater.
  local last = redis.call('SET', key, fence + more, 'PX', fence_ms, 'GET')
  if last and not ((tonumber(last) or fence) < fence) then
-- #include stored_fence
    local seen, counted = stored_fence(last)
    if not seen or seen + more >= FENCE_END then
      redis.call('SET', key, last, 'PX', fence_ms)
-- #include bad_fence
      return nil, bad_fence(key)
    end
    counted = counted_on(counted, 1, fence)
    fence = math.max(fence, seen + 1)
    redis.call('SET', key, string.format('%.0f%s', fence + more, counted), 'PX', fence_ms)
  end
  return fence
end
