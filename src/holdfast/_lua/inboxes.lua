-- Part: how clients are told something, and whether they are there. Every script that does either is given `inboxes`:
-- what the names of inboxes begin with, and by its last character how they are heard; ":" is a channel for each client.

local function inbox_of(token, inboxes)
  return inboxes .. string.match(token, '^[^:]*')
end

-- Send that client a message. Returns how many have it for certain: 0 when it is not there, or listens at another node.
local function send(token, inboxes, message)
  return redis.call('PUBLISH', inbox_of(token, inboxes), message)
end

-- Whether a client listens here.
local function is_there(token, inboxes)
  return redis.call('PUBSUB', 'NUMSUB', inbox_of(token, inboxes))[2] > 0
end

-- The same for many (every `step`-th of the list): true for each that does, or is `me`.
local function are_there(tokens, step, inboxes, me)
  local channels, there = {}, {}
  for at = 1, #tokens, step do
    channels[#channels + 1] = inbox_of(tokens[at], inboxes)
  end
  local counted = redis.call('PUBSUB', 'NUMSUB', unpack(channels))
  for at = 1, #channels do
    there[at] = counted[2 * at] > 0 or tokens[(at - 1) * step + 1] == me
  end
  return there
end
