-- Change what a gate is waiting for, and tell its waiters when it opens.
-- KEYS    1 state: "<still missing> <declared>"  2 waiters  3 gone, which also remembers what was done
-- ARGV    1 token of this change  2 how many fewer are missing, or "open", "shut", "look"  3 retain_ms
--         4 declared count (an event's is 1)  5 prefix of inboxes  6 how long to remember the change, ms
-- Returns {1, still missing}, with a 1 behind it when more are to be told: ask again; or {-2, declared count stored}
-- #include tombstone
-- How many waiters one call tells.
local TOLD_MAX = 250
local state, waiters, gone = KEYS[1], KEYS[2], KEYS[3]
local missing, declared = string.match(redis.call('GET', state) or '', '^(%d+) (%d+)$')
if declared and declared ~= ARGV[4] then
  return {-2, tonumber(declared)}
end
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
redis.call('SET', state, string.format('%.0f %s', after, ARGV[4]), 'PX', ARGV[3])
if after ~= before then
  tombstone(gone, ARGV[1], ARGV[6])
end
if after == 0 then
  local first = redis.call('ZRANGE', waiters, 0, TOLD_MAX - 1)
  for _, token in ipairs(first) do
    redis.call('PUBLISH', ARGV[5] .. string.match(token, '^[^:]*'), 'ask ' .. token)
  end
  if first[1] then
    redis.call('ZREM', waiters, unpack(first))
    if redis.call('EXISTS', waiters) == 1 then
      return {1, after, 1}
    end
  end
end
return {1, after}
