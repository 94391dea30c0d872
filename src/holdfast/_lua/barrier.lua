-- Part: telling those who wait at a barrier that its generation has ended. Needs inboxes.
-- #include tombstone
-- How many one call tells. Of a barrier that is broken, each of them tells more.
local TOLD_MAX = 128

local function tell_some(arrived, gone, tombstone_ms)
  local popped, told = redis.call('ZPOPMIN', arrived, TOLD_MAX), {}
  for at = 1, #popped, 2 do
    told[#told + 1] = popped[at]
    send(popped[at], 'ask ' .. popped[at])
  end
  if told[1] then
    leave_tombstones(gone, told, tombstone_ms)
  end
end
