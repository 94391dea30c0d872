-- Part: a client that has a lock to itself, after a release or for a row of its own waiters, is told that another one
-- wants it. Needs waiters.
-- `queue`: where that one waits, if it does and the holder was there before; `came`: how many have come with this call.
-- The tokens of what is kept end with "*+": the client lets go at once where it has none inside, else with the next
-- release. Those of tenures end with "+": such a client knows that no one waited, and is told of the first who does.
local function tell_keeper(holder, queue, came)
  if not holder or string.sub(holder, -1) ~= '+' then
    return
  end
  local count = string.sub(holder, -2) ~= '*+' and (queue and redis.call('ZCARD', queue) or 0)
  if not count or count > 0 and count <= (came or 1) then
    send(holder, 'yield ' .. holder)
  end
end
