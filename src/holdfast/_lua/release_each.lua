-- Release each of several locks that have no waiters, independently of the others.
-- KEYS    for each lock: lock, queue
-- ARGV    the token for each lock
-- Returns for each lock 1: released, or 0: nothing was done, release it by itself
local queues = {}
for at = 2, #KEYS, 2 do
  queues[#queues + 1] = KEYS[at]
end
local quiet = redis.call('EXISTS', unpack(queues)) == 0

local released, free = {}, {}
for number, token in ipairs(ARGV) do
  local lock = KEYS[2 * number - 1]
  local mine = redis.call('GET', lock) == token and (quiet or redis.call('EXISTS', queues[number]) == 0)
  released[number] = mine and 1 or 0
  if mine then
    free[#free + 1] = lock
  end
end
if free[1] then
  redis.call('DEL', unpack(free))
end
return released
