-- Part: how clients are told something, and whether they are there. `inboxes`: what the names of their channels begin
-- with. How a client listens stands in its id: one that begins with "c" is of a Cluster, and has a sharded channel for
-- each hash tag, in the slot of the keys; where it may not, or this server has none (before Redis 7), and all others,
-- one channel for everything. KEYS 2 has the hash tag.

-- The one channel, and the sharded one or nil.
local function inboxes_of(token, inboxes)
  local client = string.match(token, '^[^:]*')
  return inboxes .. client, string.sub(client, 1, 1) == 'c' and inboxes .. string.match(KEYS[2], '{[^}]*}') .. client
end

-- Send that client a message. Returns how many have it for certain: 0 when it is not there, or listens at another node.
local function send(token, inboxes, message)
  local channel, sharded = inboxes_of(token, inboxes)
  local told = sharded and redis.pcall('SPUBLISH', sharded, message)
  if type(told) == 'number' and (told > 0 or redis.call('PUBSUB', 'NUMSUB', channel)[2] == 0) then
    return told -- what is published the other way goes to every node
  end
  return redis.call('PUBLISH', channel, message)
end

-- Whether a client listens here.
local function is_there(token, inboxes)
  local channel, sharded = inboxes_of(token, inboxes)
  return sharded and (redis.pcall('PUBSUB', 'SHARDNUMSUB', sharded)[2] or 0) > 0
    or redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0
end

-- The same for many (every `step`-th of the list): true for each that does, or is `me`.
local function are_there(tokens, step, inboxes, me)
  local channels, sharded, near, there = {}, {}, nil, {}
  for at = 1, #tokens, step do
    local channel, its = inboxes_of(tokens[at], inboxes)
    channels[#channels + 1], sharded[#sharded + 1] = channel, its or channel
    near = near or its
  end
  near = near and redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(sharded)) or {}
  local counted = redis.call('PUBSUB', 'NUMSUB', unpack(channels))
  for at = 1, #channels do
    there[at] = counted[2 * at] + (near[2 * at] or 0) > 0 or tokens[(at - 1) * step + 1] == me
  end
  return there
end
