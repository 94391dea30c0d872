-- Release several locks and hand each to the head of its queue; also leaves the queues, and gives back.
-- KEYS    for each lock: lock, fence, queue, gone
-- ARGV    1 token  2 fence_ms  3 claim_ms  4 prefix of inboxes
--         5 tombstone_ms: > 0 leaves the queues too, and refuses this token for that long (a delayed acquire may follow)
-- Returns 1 all were held, 0 not all; 3 and -1 the same, but queues are not gone through: ask again
local token, inboxes, tombstone_ms = ARGV[1], ARGV[4], tonumber(ARGV[5])
-- #include server_time
-- #include fence
-- #include queue
looks_left = LOOKS_MAX / 4 -- the names take their time as well
local result, done = 1, true
for at = 1, #KEYS, 4 do
  local lock, queue, gone = KEYS[at], KEYS[at + 2], KEYS[at + 3]
  marks = gone
  if tombstone_ms > 0 then
    redis.call('ZREM', queue, token)
  end
  local holder = redis.call('GET', lock)
  if holder ~= token then
    result = 0
  end
  if holder == token or not holder then
    done = pass_on(lock, KEYS[at + 1], queue, ARGV[3], ARGV[2]) >= 0 and done
  end
  if tombstone_ms > 0 then
-- #include tombstone
    leave_tombstones(gone, {token}, tombstone_ms)
  end
end
if not done then
  return result == 1 and 3 or -1
end
return result
