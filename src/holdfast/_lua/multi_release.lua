-- Release several locks and hand each to the head of its queue; also leaves the queues, and gives back.
-- KEYS    for each lock: lock, fence, queue, gone
-- ARGV    1 token  2 fence_ms  3 claim_ms  4 prefix of inboxes
--         5 bury_ms: > 0 leaves the queues too, and refuses this token for so long (a delayed acquire may follow)
-- Returns 1 all were held, 0 not all
local token, bury_ms = ARGV[1], tonumber(ARGV[5])

-- All are held and nobody waits: first, since it is the most frequent case and should cost least.
if bury_ms == 0 then
  local locks, queues, mine = {}, {}, true
  for at = 1, #KEYS, 4 do
    locks[#locks + 1] = KEYS[at]
    queues[#queues + 1] = KEYS[at + 2]
    mine = mine and redis.call('GET', KEYS[at]) == token
  end
  if mine and redis.call('EXISTS', unpack(queues)) == 0 then
    redis.call('DEL', unpack(locks))
    return 1
  end
end

-- #include fence
-- #include queue
-- #include bury
local result = 1
for at = 1, #KEYS, 4 do
  local lock, queue, gone = KEYS[at], KEYS[at + 2], KEYS[at + 3]
  if bury_ms > 0 then
    redis.call('ZREM', queue, token)
  end
  if redis.call('GET', lock) == token then
    local heir = next_waiter(queue, ARGV[4])
    if not heir then
      redis.call('DEL', lock)
    else
      hand_over(lock, KEYS[at + 1], heir, ARGV[3], ARGV[2], ARGV[4])
    end
  else
    result = 0
  end
  if bury_ms > 0 then
    bury(gone, token, bury_ms)
  end
end
return result
