-- How many grants there were since someone began to look; they are counted on for a while.
-- KEYS    last fencing tokens
-- ARGV    1 for how long, ms
-- Returns the count of each; 0 where nothing was granted yet, which is not counted on
-- #include stored_fence
-- #include server_time
local counts = {}
for at, key in ipairs(KEYS) do
  local last, counted = stored_fence(redis.call('GET', key) or '')
  counts[at] = last and tonumber(string.match(counted, '^ (%d+)') or 0) or 0
  if last then
    redis.call('SET', key, string.format('%.0f %.0f %.0f', last, counts[at], now_us + ARGV[1] * 1000), 'KEEPTTL')
  end
end
return counts
