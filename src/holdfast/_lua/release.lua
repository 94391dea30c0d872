-- Release a lock and hand it to the head of its queue; also leaves the queue, and gives back what may be held.
-- KEYS    1 lock  2 fence  3 queue  4 gone; behind them crash, where there is such a note
-- ARGV    1 token  2 fence_ms  3 claim_ms  4 prefix of inboxes
--         5 tombstone_ms: > 0 leaves the queue too, and refuses this token for that long (a delayed acquire may follow)
--         6 the last fencing token of the block that came with it, or none; "": it is not known, and only the first of
--         it may have been used  7 the last that was used
-- Returns 2 released and handed over, 1 released, 0 was not the holder
--         3 released, -1 was not the holder; the lock is free, and its queue is not gone through: ask again
local lock, queue, gone = KEYS[1], KEYS[3], KEYS[4]
local token, inboxes = ARGV[1], ARGV[4]
local tombstone_ms = tonumber(ARGV[5])
local holder = redis.call('GET', lock)
local mine = holder == token

if mine and ARGV[6] then
-- #include unblock
  unblock(KEYS[2], ARGV[6], ARGV[7], ARGV[2])
end

if mine and KEYS[5] then
  redis.call('DEL', KEYS[5])
end
-- No waiters: first, since it is the most frequent case and should cost least.
if mine and tombstone_ms == 0 and redis.call('EXISTS', queue) == 0 then
  redis.call('DEL', lock)
  return 1
end

-- #include server_time
-- #include fence
if mine and ARGV[6] == '' then
-- #include stored_fence
-- #include unblock
  local last = stored_fence(redis.call('GET', KEYS[2]) or '')
  if last then
    unblock(KEYS[2], string.format('%.0f', last), last + 1 - fences_of(token), ARGV[2])
  end
end

-- #include queue
if tombstone_ms > 0 then
  redis.call('ZREM', queue, token)
end
local result = mine and 1 or 0
if mine or not holder then
  local passed = pass_on(lock, KEYS[2], queue, ARGV[3], ARGV[2])
  if passed < 0 then
    result = mine and 3 or -1
  elseif mine then
    result = 1 + passed
  end
end
-- #include gave_back
