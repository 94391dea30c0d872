-- Part: take the dead out of the `most` right before `place`, so that they do not pile up between releases. Returns the
-- place after that. Does nothing for a user who may not ZRANGE. Needs inboxes.
-- #include bury
local function trim(queue, place, most)
  local before = place > 0 and redis.pcall('ZRANGE', queue, math.max(place - most, 0), place - 1)
  return before and not before.err and before[1] and place - bury(queue, before) or place
end
