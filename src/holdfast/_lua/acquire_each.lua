-- Acquire each of several locks that are free and have no waiters, independently of the others.
-- KEYS    for each lock: lock, fence, queue, gone
-- ARGV    1 ttl_ms  2 fence_ms, then the token for each lock
-- Returns for each lock its fencing token: granted, or 0: nothing was done, acquire it by itself (also a repeat)
-- #include fence
local ttl_ms, fence_ms = ARGV[1], ARGV[2]

local wanted = {}
for at = 1, #KEYS, 4 do
  wanted[#wanted + 1] = KEYS[at]
  wanted[#wanted + 1] = KEYS[at + 2]
  wanted[#wanted + 1] = KEYS[at + 3]
end
local all_free = redis.call('EXISTS', unpack(wanted)) == 0
-- #include server_time

local function take(at, token)
  if not all_free and redis.call('EXISTS', KEYS[at], KEYS[at + 2], KEYS[at + 3]) > 0 then
    return 0
  end
  local fence = next_fence(KEYS[at + 1], fence_ms, now_us, token)
  -- NX: the same lock may be among them twice.
  return fence and redis.call('SET', KEYS[at], token, 'NX', 'PX', ttl_ms) and fence or 0
end

local granted = {}
for at = 1, #KEYS, 4 do
  local number = #granted + 1
  -- An error (no memory) is for that lock alone, which acquires by itself and is told.
  local done, fence = pcall(take, at, ARGV[2 + number])
  granted[number] = done and fence or 0
end
return granted
