-- Part: granting from the head of a queue what more than one may hold. Needs server_time and fence, and before it queue, fence_key
-- and two functions:
--   fits(head)             true: it can be granted; false: not now, nor what comes after it; nil: never
--   give(head, window_ms)  grants it for that long; returns whether that keeps all others out
-- #include waiters

-- The error when a fencing token could not grow: then nothing is granted, and the caller is told.
local no_fence
-- Set while no one can be granted anything.
local closed = false

-- Grant as far as it goes. `me` is the caller's own token in the queue, if any: it gets its whole ttl and no message.
-- Returns the caller's fencing token or nil, how many others were granted, and whether there may be more to do than one
-- call does: then a client has to ask again.
local function advance(me, ttl_ms, claim_ms, fence_ms)
  -- How many looks more a grant counts.
  local GRANT_LOOKS = 5
  local mine, others, waits = nil, 0, false
  while looks_left > 0 and not (closed or waits or no_fence) do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then
      break
    end
    looks_left = looks_left - 1
    local there = head == me or not gone_of({head})[1]
    local fitting = there and fits(head)
    local fence, wrong
    if fitting then
      fence, wrong = next_fence(fence_key, fence_ms, now_us, head)
    end
    waits = there and fitting == false
    if not waits then
      redis.call('ZREM', queue, head)
    end
    if fence then
      looks_left = looks_left - GRANT_LOOKS
      closed = give(head, head == me and ttl_ms or claim_ms)
      if head == me then
        mine = fence
      else
        others = others + 1
        send(head, string.format('grant %s %.0f %.0f', head, fence, claim_ms))
      end
    elseif there and not waits then
      no_fence = wrong
      send(head, 'ask ' .. head) -- so that it is told why
    elseif not there and looks_left > 0 then
-- #include shed
      shed(queue, me)
    end
  end
  local more = looks_left <= 0 and not (closed or waits or no_fence) and redis.call('EXISTS', queue) == 1
  if more then
-- #include nudge
    nudge(queue)
  end
  return mine, others, more
end
