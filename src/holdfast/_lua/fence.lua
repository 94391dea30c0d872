-- Part: the next fencing token, greater than the last one and not below the server's time in µs, so that it
-- grows also when the last one is forgotten (FLUSHALL, a restart without data, a failover that lost writes).
local function next_fence(key, fence_ms)
  local now = redis.call('TIME')
  local fence = now[1] * 1000000 + now[2]
  local last = redis.call('GET', key)
  if last and tonumber(last) >= fence then
    fence = tonumber(last) + 1
  end
  redis.call('SET', key, string.format('%.0f', fence), 'PX', fence_ms)
  return fence
end
