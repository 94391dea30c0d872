-- Part: take the dead out of the first SHED_MAX of a queue. Does nothing for a user who may not ZRANGE. Needs waiters.
-- #include bury
local function shed(queue, me)
  local SHED_MAX = 64
  local first = redis.pcall('ZRANGE', queue, 0, SHED_MAX - 1)
  if not first.err and first[1] then
    looks_left = looks_left - #first
    bury(queue, first, me)
  end
end
