-- Wait for a gate to open: an event to be set, a latch to come to 0.
-- KEYS    1 state: "<still missing> <declared> <openings> <first>"  2 waiters  3 gone
--         openings: a number that grows with each; first: what it was when the state was made, the time in µs
--         a waiter's score: the openings when it came, negative once it was told
-- ARGV    1 token  2 "try", "wait" or "leave"  3 the openings when it came, as an earlier reply gave them; 0: not known
--         4 declared count (an event's is 1)  5 retain_ms  6 prefix of inboxes
--         7 ms after which a waiter looks for itself  8 tombstone_ms of "leave"
-- Returns {1, 0}                                open, or it has opened since this waiter came
--         {0, ms, "", place (-1: not queued), openings}   not yet
--         {-1}                                  this token left before
--         {-2, declared count stored}           declared otherwise
local state, waiters, gone = KEYS[1], KEYS[2], KEYS[3]
local token, inboxes = ARGV[1], ARGV[6]
-- #include format
-- #include limits
-- #include server_time
-- #include inboxes
-- #include ask_again
if ARGV[2] == 'leave' then
  redis.call('ZREM', waiters, token)
-- #include tombstone
  leave_tombstones(gone, {token}, ARGV[8])
  return {0, 0, '', -1, 0}
end
-- #include gate
local came = tonumber(ARGV[3])
if came == 0 then
  came = math.abs(tonumber(redis.call('ZSCORE', waiters, token) or 0))
end
-- What is less than `first` was counted before the data were lost.
local has_opened = missing and tonumber(first) <= came and came < tonumber(openings)
if missing == '0' or has_opened then
  redis.call('ZREM', waiters, token)
  return {1, 0}
end
if redis.call('ZRANK', gone, token) then
  return {-1}
end
if ARGV[2] == 'try' then
  return {0, tonumber(ARGV[7]), '', -1, 0}
end
if not missing then
  openings = string.format('%.0f', now_us)
end
if redis.call('ZADD', waiters, openings, token) == 1 then
-- #include trim
  trim(waiters, redis.call('ZRANK', waiters, token), TRIM_FIRST)
end
redis.call('PEXPIRE', waiters, tonumber(ARGV[7]) + SLACK_MS)
if missing then
  redis.call('PEXPIRE', state, ARGV[5])
else
  redis.call('SET', state, table.concat({ARGV[4], ARGV[4], openings, openings}, ' '), 'PX', ARGV[5])
end
return {0, ask_again_ms(token, tonumber(ARGV[7]), 0, 0), '', 0, tonumber(openings)}
