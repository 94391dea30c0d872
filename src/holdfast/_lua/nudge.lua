-- Part: a queue was not gone through to its end: ask one that is there, at either end, to look for itself and so go on
-- with it, should the caller not do that. For a few queues, since it takes time, too. Needs waiters.
-- #include gone_of
local function nudge(queue)
  -- How many entries, at either end, it asks.
  local NUDGE_LOOKS = 16
  nudges_left = nudges_left - 1
  for _, from in ipairs({0, -NUDGE_LOOKS}) do
    local some = nudges_left >= 0 and redis.pcall('ZRANGE', queue, from, from + NUDGE_LOOKS - 1) or {}
    local gone = not some.err and some[1] and gone_of(some)
    for at = 1, gone and #some or 0 do
      if not gone[at] then
        send(some[at], 'ask ' .. some[at])
        return
      end
    end
  end
end
