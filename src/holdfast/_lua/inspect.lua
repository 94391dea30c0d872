-- Look at a lock, a readers-writer lock or a semaphore without changing anything.
-- KEYS    1 lock, or limit  2 fence  3 queue; of more than a lock  4 gone  5 readers, or holders  6 upgraded
-- ARGV    1 "semaphore" for one
-- Returns {holder (its first HOLDER_BYTES) or "", remaining ms (-1: no ttl, -2: free), last fencing token, waiters}
--         of a readers-writer lock: this of the exclusive holder, and living readers
--         of a semaphore: {"", -2, last fencing token, waiters, holders, limit (0: none is stored), permits in use}
-- #include stored_fence
-- #include limits
local fence = stored_fence(redis.call('GET', KEYS[2]) or '0')
if not fence then
-- #include bad_fence
  return bad_fence(KEYS[2])
end
local seen = {'', -2, fence, redis.call('ZCARD', KEYS[3])}
if ARGV[1] ~= 'semaphore' then
-- #include holder
  local holder, key = holder_of(KEYS[1]), KEYS[1]
  local alone = KEYS[6] and redis.call('GET', KEYS[6])
  if alone then
    holder, key = holder and holder ~= SHARED and holder or alone, KEYS[6]
  end
  if holder and not (KEYS[6] and holder == SHARED) then
    seen[1], seen[2] = holder, redis.call('PTTL', key)
  end
  if not KEYS[5] then
    return seen
  end
end
-- #include server_time
seen[5] = redis.call('ZCOUNT', KEYS[5], '(' .. string.format('%.0f', now_ms), '+inf')
if ARGV[1] == 'semaphore' then
-- #include held_permits
  local limit = stored_limit()
  if not limit then
    count_extra(PURGE_MAX) -- a look must not take long: what others have beyond one permit each is not known
  end
  seen[6] = limit or 0
  seen[7] = used() - (extra > 0 and over_by(OVER_MAX) or 0)
end
return seen
