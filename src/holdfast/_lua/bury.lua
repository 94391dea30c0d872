-- Part: take the dead among these members out of a queue; returns how many. Needs inboxes.
-- #include gone_of
local function bury(queue, tokens, me)
  local dead = {}
  for at in pairs(gone_of(tokens, me)) do
    dead[#dead + 1] = tokens[at]
  end
  if dead[1] then
    redis.call('ZREM', queue, unpack(dead))
  end
  return #dead
end
