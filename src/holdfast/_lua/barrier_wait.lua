-- Arrive at a barrier; the last party to arrive lets all go on.
-- KEYS    1 state (hash: generation, parties, broken)  2 arrived  3 parties released recently  4 gone
-- ARGV    1 token  2 "wait"; "break": its time is over, break the barrier; "leave": go away from it
--         3 1 + generation at arrival as an earlier reply gave it, or 0  4 parties  5 retain_ms  6 prefix of inboxes
--         7 ms after which a party looks for itself  8 tombstone_ms of a party that leaves or finds it broken
-- Returns {1, index of this party, generation}          all have arrived (also to a repeat)
--         {0, ms, "", place, 1 + generation}            others are missing
--         {-1}                                          this party left before, or was told that it is broken
--         {-2}                                          broken
--         {-3, parties stored}                          declared otherwise
local state, arrived, released, gone = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, parties, inboxes = ARGV[1], tonumber(ARGV[4]), ARGV[6]
-- #include server_time
-- #include inboxes
-- #include send
-- #include barrier
-- How long parties that were released are remembered, ms, and how many: a repeat of theirs may follow.
local RELEASED_MS, RELEASED_MAX = 600000, 100000
-- A released party's score is the ms of its release times this, and its index: parties are not more.
local INDEXES = 1000
-- How many more parties each that is told tells when all go on and it asks: enough for 1,000.
local TELLS = 7
local kept = redis.call('HMGET', state, 'generation', 'parties', 'broken')
local generation = tonumber(kept[1] or 0)

-- The released party with this index tells those that the last one to arrive has not.
local function tell_more(index)
  if parties > TOLD_MAX and index < TOLD_MAX then
    local first = redis.call('ZRANK', released, token) - index + TOLD_MAX + TELLS * index
    for _, other in ipairs(redis.call('ZRANGE', released, first, first + TELLS - 1)) do
      send(other, 'ask ' .. other)
    end
  end
end

local mark = redis.call('ZSCORE', released, token)
if mark then
  local index = tonumber(mark) % INDEXES
  tell_more(index)
  return {1, index, generation}
end
-- #include format
if ARGV[2] == 'leave' then
  redis.call('ZREM', arrived, token)
  leave_tombstones(gone, {token}, ARGV[8])
  return {0, 0, '', -1, 0}
end
local broken = kept[3] == '1'
if redis.call('ZRANK', gone, token) then
  if broken then
    tell_some(arrived, gone, ARGV[8])
  end
  return {-1}
end
if kept[2] and tonumber(kept[2]) ~= parties then
  return newer_format(state, kept[2]) or {-3, tonumber(kept[2])}
end
local over = ARGV[3] ~= '0' and tonumber(ARGV[3]) ~= generation + 1
if ARGV[2] == 'break' and not (broken or over) then
  redis.call('HSET', state, 'generation', generation, 'parties', parties, 'broken', '1')
  redis.call('PEXPIRE', state, ARGV[5])
  broken = true
end
if broken or over then
  redis.call('ZREM', arrived, token)
  leave_tombstones(gone, {token}, ARGV[8])
  if broken then
    tell_some(arrived, gone, ARGV[8])
  end
  return {-2}
end
if not redis.call('ZSCORE', arrived, token) then
  redis.call('ZADD', arrived, string.format('%.0f', now_us), token)
  redis.call('HSET', state, 'generation', generation, 'parties', parties)
end
redis.call('PEXPIRE', arrived, ARGV[5])
redis.call('PEXPIRE', state, ARGV[5])
local waiting = redis.call('ZCARD', arrived) >= parties and redis.call('ZRANGE', arrived, 0, -1) or {}
if #waiting >= parties then
-- #include bury
  if bury(arrived, waiting, token) > 0 then -- a party whose process has gone has not arrived
    waiting = redis.call('ZRANGE', arrived, 0, -1)
  end
end
if #waiting < parties then
-- #include ask_again
  local ms = ask_again_ms(token, tonumber(ARGV[7]), 0, redis.call('ZSCORE', arrived, token))
  return {0, ms, '', redis.call('ZRANK', arrived, token), generation + 1}
end
generation = generation + 1
redis.call('HSET', state, 'generation', generation)
local old = redis.call('ZCOUNT', released, '-inf', string.format('%.0f', (now_ms - RELEASED_MS) * INDEXES))
if old == 0 and redis.call('ZCARD', released) > RELEASED_MAX then
  old = 2 * #waiting
end
if old > 0 then
  redis.call('ZREMRANGEBYRANK', released, 0, math.min(old, 2 * #waiting) - 1)
end
local index, marks = 0, {}
for place, other in ipairs(waiting) do
  marks[2 * place - 1] = now_ms * INDEXES + place - 1
  marks[2 * place] = other
end
redis.call('ZADD', released, unpack(marks))
for place, other in ipairs(waiting) do
  if other == token then
    index = place - 1
  elseif place <= TOLD_MAX then
    send(other, 'ask ' .. other)
  end
end
tell_more(index)
redis.call('PEXPIRE', released, RELEASED_MS)
redis.call('DEL', arrived)
return {1, index, generation}
