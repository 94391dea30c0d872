-- Part: the fencing token that a token was told which holds the lock still; another one where that was forgotten. Needs
-- server_time and fence.
-- #include stored_fence
local function same_fence(key, fence_ms, token)
  local last = stored_fence(redis.call('GET', key) or '')
  if last then
    return last + 1 - fences_of(token)
  end
  return next_fence(key, fence_ms, now_us, token)
end
