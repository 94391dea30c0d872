-- Part: what is stored as a fencing token, as a number, and what is behind it; nil for what cannot be one. From 2^53 on,
-- numbers are not exact here: tokens would repeat.
local FENCE_END = 9007199254740991
local function stored_fence(value)
  local digits, counted = string.match(value, '^(%-?%d+)(.*)$')
  local fence = tonumber(digits)
  if fence and fence < FENCE_END and (counted == '' or string.find(counted, '^ %d+ %d+$')) then
    return fence, counted
  end
end

-- Grants are counted while someone looks at how many there are (see `counts.lua`). Behind the last fencing token then
-- stands how many there were, and until when they are counted, in µs. The same with `more` added; nothing, once `now_us`
-- is later than that.
local function counted_on(counted, more, now_us)
  local count, until_us = string.match(counted, '^ (%d+) (%d+)$')
  return count and (now_us or 0) <= tonumber(until_us) and string.format(' %.0f %s', count + more, until_us) or ''
end
