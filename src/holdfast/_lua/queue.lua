-- Part: who is next, and giving the lock to that waiter.

-- Whether a waiter's process is still there: NUMSUB of its inbox says so.
local function is_there(token, inboxes)
  local inbox = inboxes .. string.match(token, '^[^:]*')
  return tonumber(redis.call('PUBSUB', 'NUMSUB', inbox)[2]) > 0
end

-- The first waiter whose process is still there, taken out of the queue, or nil. The caller itself (`me`) need not be
-- asked. Bounded, so that no call takes long.
local function next_waiter(queue, inboxes, me)
  for _ = 1, 1000 do
    local head = redis.call('ZPOPMIN', queue)
    local token = head[1]
    if not token then
      return nil
    end
    if token == me or is_there(token, inboxes) then
      return token
    end
  end
  return nil
end

-- Write the waiter's token for the claim window and tell it. When memory is refused for that, the lock is left
-- free and the waiter asked to look for itself. Returns whether the lock has a holder now.
local function hand_over(lock, fence_key, token, claim_ms, fence_ms, inboxes)
  local inbox = inboxes .. string.match(token, '^[^:]*')
  local written = redis.pcall('SET', lock, token, 'PX', claim_ms)
  if written.err then
    redis.call('DEL', lock)
    redis.call('PUBLISH', inbox, 'ask ' .. token)
    return false
  end
  local fence = next_fence(fence_key, fence_ms)
  redis.call('PUBLISH', inbox, string.format('grant %s %.0f', token, fence))
  return true
end
