-- Move waiters of a condition into the queue of its lock, in arrival order. Only for the lock's holder.
-- KEYS    1 lock  2 queue  3 condition's waiters  4 gone  5 last notification
-- ARGV    1 token of the holder  2 how many  3 prefix of inboxes  4 number of this notification among the holder's
-- Returns how many were moved (also to a repeat), or {that} when there may be more than one call looks at: another
--         number goes on; or -1: the lock is not held by this token
local lock, queue, waiters, last, inboxes = KEYS[1], KEYS[2], KEYS[3], KEYS[5], ARGV[3]
if redis.call('GET', lock) ~= ARGV[1] then
  return -1
end
local this = ARGV[1] .. ' ' .. ARGV[4] .. ' '
local before = redis.call('GET', last)
if before and string.sub(before, 1, #this) == this then
  local done, more = string.match(string.sub(before, #this + 1), '^(%d+)(%+?)$')
  return more == '' and tonumber(done) or {tonumber(done)}
end
-- #include server_time
-- #include waiters
-- #include wanted
-- How many looks more it counts to move a waiter to another queue.
local MOVE_LOOKS = 2
local wanted, moved = tonumber(ARGV[2]), 0
local more = false
while moved < wanted do
  local token = redis.call('ZPOPMIN', waiters)[1]
  if not token then
    break
  end
  -- A notification is not spent on a process that has gone.
  if not gone_of({token})[1] then
    redis.call('ZADD', queue, 'NX', string.format('%.0f', now_us + moved), token)
    moved = moved + 1
    looks_left = looks_left - MOVE_LOOKS
  elseif looks_left > 0 then
-- #include shed
    shed(waiters)
  end
  looks_left = looks_left - 1
  if looks_left <= 0 then
    more = moved < wanted and redis.call('EXISTS', waiters) == 1
    break
  end
end
if moved > 0 then
  redis.call('PEXPIRE', queue, math.max(redis.call('PTTL', lock), 0) + SLACK_MS)
  tell_keeper(ARGV[1], queue, moved)
end
redis.pcall('SET', last, this .. moved .. (more and '+' or ''), 'PX', SLACK_MS)
return more and {moved} or moved
