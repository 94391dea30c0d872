-- Give permits back and let in who is next; also leaves the queue, and gives back what may be held.
-- KEYS    1 limit  2 fence  3 queue  4 gone  5 holders
-- ARGV    1 token  2 fence_ms  3 claim_ms  4 prefix of inboxes
--         5 tombstone_ms: > 0 leaves the queue too, and refuses this token for that long (a delayed acquire may follow)
-- Returns 2 released and others let in, 1 released, 0 was not a holder
--         3 released, -1 was not a holder; the queue is not gone through: ask again
-- #include server_time

-- No waiters: first, since it is the most frequent case and should cost least.
if ARGV[5] == '0' and (string.match(ARGV[1], '^[^:]*:(%d+)%.') or '1') == '1'
  and redis.call('EXISTS', KEYS[3]) == 0 then
  local over_ms = redis.call('ZSCORE', KEYS[5], ARGV[1])
  if over_ms then
    redis.call('ZREM', KEYS[5], ARGV[1])
    return tonumber(over_ms) > now_ms and 1 or 0
  end
  return 0
end

-- #include limits
-- #include permits
local token, inboxes, tombstone_ms = ARGV[1], ARGV[4], tonumber(ARGV[5])
local result = is_held(token) and 1 or 0
local limit, declared = stored_limit()
local late = purge(PURGE_MAX)
if redis.call('ZREM', holders, token) == 1 then
  extra = extra - weight_of(token) + 1
end
if tombstone_ms > 0 then
  redis.call('ZREM', queue, token)
end
if limit then
-- #include fence
-- #include let_in
  local _, others, more = let_in(limit, nil, 0, tonumber(ARGV[3]), ARGV[2])
  if others > 0 then
    keep(limit, declared, ARGV[2])
    result = result * 2
  else
    keep_extra(limit, declared)
  end
  if more or late and redis.call('EXISTS', queue) == 1 then
    result = result > 0 and 3 or -1
  end
end
-- #include gave_back
