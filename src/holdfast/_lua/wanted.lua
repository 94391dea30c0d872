-- Part: a client that keeps its leases for a while is told that another one wants this. Needs waiters.
-- Its tokens end with "*+". It lets go at once where it has none inside, else with the next release.
local function tell_keeper(holder, inboxes)
  if holder and string.sub(holder, -2) == '*+' then
    redis.call('PUBLISH', inbox_of(holder, inboxes), 'yield ' .. holder)
  end
end
