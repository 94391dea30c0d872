-- Part: the next fencing token, greater than the last one and not below the server's time in µs, so that it
-- grows also when the last one is forgotten (FLUSHALL, a restart without data, a failover that lost writes).
local function next_fence(key, fence_ms)
  local now = redis.call('TIME')
  local fence = now[1] * 1000000 + now[2]
  -- One call for the last one and the new one: the usual case is that the new one is the greater.
  local last = redis.call('SET', key, fence, 'PX', fence_ms, 'GET')
  if last and tonumber(last) >= fence then
    fence = tonumber(last) + 1
    redis.call('SET', key, fence, 'PX', fence_ms)
  end
  return fence
end
