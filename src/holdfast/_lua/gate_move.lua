-- Change what a gate is waiting for, and tell its waiters when it opens.
-- KEYS    1 state  2 waiters (both as in gate_wait)  3 gone, which also remembers what was done
-- ARGV    1 token of this change  2 how many fewer are missing, or "open", "shut", "look"  3 retain_ms
--         4 declared count (an event's is 1)  5 prefix of inboxes  6 how long to remember the change, ms
-- Returns {1, still missing}, with a 1 behind it when more are to be told: ask again; or {-2, declared count stored}
-- #include format
local state, waiters, gone, inboxes = KEYS[1], KEYS[2], KEYS[3], ARGV[5]
-- #include server_time
-- #include inboxes
-- #include send
-- How many waiters one call tells, and how many it forgets.
local TOLD_MAX = 250
-- #include gate
local before = tonumber(missing or ARGV[4])
local after = before
if ARGV[2] == 'look' then
  return {1, before}
elseif redis.call('ZRANK', gone, ARGV[1]) then
  after = before -- done already, whatever others have done since
elseif ARGV[2] == 'open' then
  after = 0
elseif ARGV[2] == 'shut' then
  after = tonumber(ARGV[4])
else
  after = math.max(before - tonumber(ARGV[2]), 0)
end
if not first then
  first = now_us
  openings = first
end
local opens = after == 0 and before > 0
openings = openings + (opens and 1 or 0)
redis.call('SET', state, string.format('%.0f %s %.0f %.0f', after, ARGV[4], openings, first), 'PX', ARGV[3])
if after ~= before then
-- #include tombstone
  leave_tombstones(gone, {ARGV[1]}, ARGV[6])
end
if opens then
  -- Those that an earlier opening has told have asked since, or never will.
  local told = redis.call('ZRANGEBYSCORE', waiters, '-inf', '(0', 'LIMIT', 0, TOLD_MAX)
  if told[1] then
    redis.call('ZREM', waiters, unpack(told))
  end
end
if openings > tonumber(first) then
  -- Also behind a "shut": an opening is for all that came before it, however many calls it takes to tell them.
  local some = redis.call('ZRANGEBYSCORE', waiters, 0, string.format('(%.0f', openings), 'WITHSCORES', 'LIMIT', 0, TOLD_MAX)
  local marks, dead = {}, {}
  for at = 1, #some, 2 do
    if send(some[at], 'ask ' .. some[at]) > 0 then
      marks[#marks + 1] = '-' .. some[at + 1]
      marks[#marks + 1] = some[at]
    else
      dead[#dead + 1] = some[at] -- or it listens elsewhere, and knows when it came
    end
  end
  if marks[1] then
    redis.call('ZADD', waiters, unpack(marks))
  end
  if dead[1] then
    redis.call('ZREM', waiters, unpack(dead))
  end
  if #some == 2 * TOLD_MAX then
    return {1, after, 1}
  end
end
return {1, after}
