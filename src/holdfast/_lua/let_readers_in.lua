-- Part: granting a readers-writer lock to those that wait. Needs readers and fence.

-- The exclusive holder, SHARED or false, as `let_in` goes on; and whether it has granted what reads.
local holds, read
local function fits(head)
  local beneath = reader_of(head)
  if beneath and not reads(beneath, holds) then
    return nil
  end
  return is_reader(head) or living_readers() <= (beneath and 1 or 0)
end
local function give(head, window_ms)
  if is_reader(head) then
    redis.call('ZADD', readers, plain(now_ms + window_ms), head)
    holds, read = SHARED, true
    return false
  end
  redis.call('SET', reader_of(head) and upgraded or lock, head, 'PX', plain(window_ms))
  holds, read = head, reader_of(head) ~= nil
  return true
end
-- #include advance

-- Grant from the head of the queue as far as it goes: readers that follow each other together, a writer alone.
local function let_in(...)
  holds, read = current(), false
  closed = holds and holds ~= SHARED
  local mine, others, more = advance(...)
  if read then
    mirror()
  end
  return mine, others, more
end

-- A reader that was handed the lock's own key (by a release that knows no readers) joins the readers.
local function settle(token, ttl_ms, claim_ms, fence_ms)
  redis.call('DEL', lock)
  redis.call('ZADD', readers, 'GT', plain(now_ms + ttl_ms), token)
  mirror()
  let_in(nil, 0, claim_ms, fence_ms)
end
