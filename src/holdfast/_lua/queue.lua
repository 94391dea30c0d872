-- Part: who is next, and giving the lock to that waiter. Needs server_time and fence.
-- #include waiters

-- The first waiter whose process is still there, taken out of the queue; nil: there is none; false: so far only dead
-- ones were found, and this call has looked at enough. The caller itself (`me`) need not be asked.
local function next_waiter(queue, me)
  while looks_left > 0 do
    local token = redis.call('ZPOPMIN', queue)[1]
    if not token or token == me or not gone_of({token})[1] then
      return token
    end
    looks_left = looks_left - 1
-- #include shed
    shed(queue, me)
  end
  return false
end

-- Write the waiter's token for the claim window and tell it both: that is `grant TOKEN FENCE CLAIM_MS`. When that is refused (no memory, fencing tokens that
-- cannot grow), the lock is left free and the waiter asked to look for itself. Returns whether it has a holder now.
local function hand_over(lock, fence_key, token, claim_ms, fence_ms)
  local written = redis.pcall('SET', lock, token, 'PX', claim_ms)
  local fence = not written.err and next_fence(fence_key, fence_ms, now_us, token)
  if not fence then
    redis.call('DEL', lock)
    send(token, 'ask ' .. token)
    return false
  end
  send(token, string.format('grant %s %.0f %s', token, fence, claim_ms))
  return true
end

-- Give a lock that has no holder any more to the first of its queue. Returns 1 when that has it now, 0 when the lock is
-- free, -1 when it is free and its queue was not gone through: then a client has to ask again.
local function pass_on(lock, fence_key, queue, claim_ms, fence_ms)
  local following = next_waiter(queue)
  if following and hand_over(lock, fence_key, following, claim_ms, fence_ms) then
    return 1
  end
  if not following then
    redis.call('DEL', lock)
    if following == false and redis.call('EXISTS', queue) == 1 then
-- #include nudge
      nudge(queue)
      return -1
    end
  end
  return 0
end
