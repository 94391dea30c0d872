-- Part: the next fencing token, greater than the last one and not below the server's time in µs, so that it
-- grows also when the last one is forgotten (FLUSHALL, a restart without data, a failover that lost writes).
-- `now_us`: that time, where the caller has it.
local function next_fence(key, fence_ms, now_us)
  local fence = now_us
  if not fence then
    local now = redis.call('TIME')
    fence = now[1] * 1000000 + now[2]
  end
  -- One call for the last one and the new one: the usual case is that the new one is the greater.
  local last = redis.call('SET', key, fence, 'PX', fence_ms, 'GET')
  if last and tonumber(last) >= fence then
    fence = tonumber(last) + 1
    redis.call('SET', key, fence, 'PX', fence_ms)
  end
  return fence
end
