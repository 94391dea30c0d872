-- Part: refuse tokens from now on, since delayed requests of them may follow. Each stands in a sorted set with the ms at
-- which it may be forgotten; every call takes out what is over of the oldest few. Beyond a limit, the oldest go early.
-- Needs server_time.
local function leave_tombstones(gone, tokens, tombstone_ms)
  -- How many tokens are refused at a time.
  local TOMBSTONES_MAX = 100000
  local count, keep_ms, oldest = redis.call('ZCARD', gone), tonumber(tombstone_ms), {}
  local full = count >= TOMBSTONES_MAX
  if count > 0 then
    keep_ms = math.max(redis.call('PTTL', gone), keep_ms)
    oldest = redis.call('ZPOPMIN', gone, 2 + 2 * #tokens)
  end
  local kept = {}
  for at = 1, #oldest, 2 do
    if not full and tonumber(oldest[at + 1]) > now_ms then
      kept[#kept + 1] = oldest[at + 1]
      kept[#kept + 1] = oldest[at]
    end
  end
  for _, token in ipairs(tokens) do
    kept[#kept + 1] = string.format('%.0f', now_ms + tombstone_ms)
    kept[#kept + 1] = token
  end
  -- ZADD answers with a number, or with a table when memory is refused: then there is no tombstone.
  if type(redis.pcall('ZADD', gone, unpack(kept))) == 'number' then
    redis.call('PEXPIRE', gone, keep_ms)
  end
end
