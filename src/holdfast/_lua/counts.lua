-- How many grants there were since someone began to look; they are counted on for a while.
-- KEYS    counts of grants
-- ARGV    1 for how long, ms
-- Returns the count of each
local counts = {}
for at, key in ipairs(KEYS) do
  counts[at] = tonumber(redis.call('GET', key) or 0) or 0
  redis.call('SET', key, string.format('%.0f', counts[at]), 'PX', ARGV[1])
end
return counts
