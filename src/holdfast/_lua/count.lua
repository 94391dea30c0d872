-- Part: grants are counted while someone looks at how many there are (see `counts.lua`). Behind the last fencing token
-- then stands how many there were, and until when they are counted, in µs.

-- The same with `more` added; nothing, once `now_us` is later than that.
local function counted_on(counted, more, now_us)
  local count, until_us = string.match(counted, '^ (%d+) (%d+)$')
  return count and (now_us or 0) <= tonumber(until_us) and string.format(' %.0f %s', count + more, until_us) or ''
end

-- Give back what was not used of a block of fencing tokens that ends with `last`: only while no other one was reserved since.
local function unblock(key, last, used, fence_ms)
  -- The first is counted already.
  local BEHIND_FIRST = 1023
  local digits, counted = string.match(redis.call('GET', key) or '', '^(%d+)(.*)$')
  if digits == last then
    counted = counted_on(counted, used - last + BEHIND_FIRST)
    redis.pcall('SET', key, string.format('%.0f%s', used, counted), 'PX', fence_ms)
  end
end
