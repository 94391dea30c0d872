-- Look at what lies under some names without changing anything.
-- KEYS    five for each: 1 lock (of a semaphore its limit)  2 fence  3 queue  4 readers (holders)  5 upgraded
-- ARGV    1 how many holders and waiters to name of each, at most; then for each "lock" or "semaphore"
-- Returns {time in µs, then for each: {is it shared?, remaining ms, permits, how many hold it, waiters, last fencing token,
--         {holder, 1 where a waiter has seen that its client has gone, or what it is about, …}, {waiter, arrival in µs, …}, a key that holds what we do not write, or ""}}.
--         Such a key counts as none.
-- #include limits
-- #include server_time
local most = tonumber(ARGV[1])
local NUMBER_END = 9007199254740991 -- from here on, numbers are not exact, and fencing tokens refused
local odd

local function ask(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) == 'table' and answer.err then
    if not string.find(answer.err, 'WRONGTYPE', 1, true) then
      error(answer.err, 2) -- denied to this user, usually: that is not to look like a lock that is free
    end
    odd = key
    return nil
  end
  return answer or nil
end

-- The number that a value of this form begins with; 0 where there is none.
local function number(key, form)
  local LAST_BYTE = 63 -- ours are shorter; what else is there may be of any size
  local value = ask('GETRANGE', key, 0, LAST_BYTE) or ''
  local found = string.find(value, form) and tonumber(string.match(value, '^%-?%d+'))
  if value ~= '' and not (found and found < NUMBER_END) then
    odd = key
  end
  return odd ~= key and found or 0
end

local function held_by_many(key)
  local alive = '(' .. string.format('%.0f', now_ms)
  return ask('ZCOUNT', key, alive, '+inf') or 0, ask('ZRANGEBYSCORE', key, alive, '+inf', 'WITHSCORES', 'LIMIT', 0, most) or {}
end

local found = {now_us}
for at = 1, #KEYS, 5 do
  local lock, fence, queue, many, upgraded = KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3], KEYS[at + 4]
  local kind = ARGV[2 + (at - 1) / 5]
  local shared, left_ms, permits, count, holders = 0, -2, 0, 0, {}
  odd = ''
  if kind == 'semaphore' then
    permits = number(lock, '^%d+ %d+ ?%d*$')
    count, holders = held_by_many(many)
  else
    local holder = ask('GETRANGE', lock, 0, HOLDER_BYTES - 1)
    if not holder or (holder == '' and redis.call('EXISTS', lock) == 0) then
      holder = nil
    end
    if holder == SHARED then
      shared = 1
      count, holders = held_by_many(many)
      holder = ask('GET', upgraded)
    end
    if holder then
      left_ms = redis.call('PTTL', shared == 1 and upgraded or lock)
      local away = string.find(holder, '!%d+$') and ask('GET', fence .. ':crash')
      local since = away and string.match(away, '^gone %x+ (%S+ %d+)$')
      local gone = since and string.sub(since, 1, #holder + 1) == holder .. ' ' and 1 or 0
      if gone == 1 then
        local until_ms = string.match(since, '%d+$') + string.match(holder, '%d+$') * 1.01 -- as crash.lua has it
        left_ms = math.min(left_ms, math.max(math.ceil(until_ms - now_ms), 0))
      end
      shared, count, holders = 0, 1, {holder, gone}
    end
  end
  found[#found + 1] = {
    shared, left_ms, permits, count, ask('ZCARD', queue) or 0, number(fence, '^%-?%d+[ %d]*$'), holders,
    ask('ZRANGE', queue, 0, most - 1, 'WITHSCORES') or {}, odd
  }
end
return found
