-- Part: give back what was not used of a block of fencing tokens that ends with `last`: only while no other one was
-- reserved since.
local function unblock(key, last, used, fence_ms)
  local stored, counted = redis.call('GET', key), ''
  if stored and stored ~= last then
-- #include stored_fence
    -- The first is counted already.
    local BEHIND_FIRST = 1023
    stored, counted = string.match(stored, '^(%d+)(.*)$')
    counted = stored == last and counted_on(counted, used - last + BEHIND_FIRST)
  end
  if stored == last and stored ~= '' then
    redis.pcall('SET', key, string.format('%.0f%s', used, counted), 'PX', fence_ms)
  end
end
