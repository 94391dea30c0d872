-- Part: grants are counted while someone looks at how many there are (see `counts.lua`). By commands that all users have.
local function count_grants(fence_key, more)
  local count = fence_key .. ':count'
  local counted = more > 0 and redis.pcall('GET', count)
  if type(counted) == 'string' then
    redis.pcall('SET', count, string.format('%.0f', (tonumber(counted) or 0) + more), 'KEEPTTL')
  end
end

-- Those by a block of fencing tokens that ends with `last`, after the first.
local function count_handed_on(fence_key, last, used)
  local BEHIND_FIRST = 1023
  count_grants(fence_key, (tonumber(used) or 0) - (tonumber(last) or math.huge) + BEHIND_FIRST)
end

