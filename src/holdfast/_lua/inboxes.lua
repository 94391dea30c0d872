-- Part: how clients are told something, and whether they are there. `inboxes`: what the names of their channels begin
-- with. How a client listens stands in its id: one that begins with "c" is of a Cluster, and has a sharded channel for
-- each hash tag, in the slot of the keys; where it may not, or this server has none (before Redis 7), and all others,
-- one channel for everything.
-- A "?" before `inboxes` says that the caller's client cannot be told: then each of its asks leaves a mark among the
-- tokens that are gone, its id, so that it is there for others, and the answer says when to ask again.
-- #include tombstone

-- How long a mark lasts, ms. A waiter further back asks at least three times meanwhile.
local THERE_MS, ASK_MAX_MS = 3000, 900
-- The first of a queue asks again after a part of the time that it has waited, within these bounds, ms.
local ASK_FIRST_MS, ASK_LATER_MS, ASK_PART = 10, 100, 16

-- Where marks are, and tokens that are gone: the fourth key of scripts, or the last of fewer. It has the hash tag.
local marks = KEYS[4] or KEYS[#KEYS]

local function client_of(token)
  return string.match(token, '^[^:]*')
end

-- The one channel, and the sharded one or nil.
local function inboxes_of(token, inboxes)
  local client = client_of(token)
  inboxes = string.match(inboxes, '^%??(.*)$')
  return inboxes .. client, string.sub(client, 1, 1) == 'c' and inboxes .. string.match(marks, '{[^}]*}') .. client
end

-- The answer; nil where this server lets no script ask that. That only a user may not is raised.
local function if_allowed(answer)
  if type(answer) ~= 'table' or not answer.err then
    return answer
  elseif string.find(answer.err, 'ermission') or string.find(answer.err, 'ACL') or string.find(answer.err, "can't ") then
    error(answer.err, 2)
  end
end

-- How many have subscribed to a channel, as far as is known here.
local function count(channel)
  local counted = if_allowed(redis.pcall('PUBSUB', 'NUMSUB', channel))
  return counted and counted[2] or 0
end

-- Send that client a message. Returns how many have it for certain: 0 when it is not there, or listens at another node.
local function send(token, inboxes, message)
  local channel, sharded = inboxes_of(token, inboxes)
  local told = sharded and redis.pcall('SPUBLISH', sharded, message)
  if type(told) == 'number' and (told > 0 or count(channel) == 0) then
    return told -- what is published the other way goes to every node
  end
  return if_allowed(redis.pcall('PUBLISH', channel, message)) or 0
end

-- Whether a client can be told.
local function hears(token, inboxes)
  local channel, sharded = inboxes_of(token, inboxes)
  return sharded and (redis.pcall('PUBSUB', 'SHARDNUMSUB', sharded)[2] or 0) > 0 or count(channel) > 0
end

-- Whether a client asks; and by what was looked up, whether any may.
local any_asks = {}
local function asks(token)
  if any_asks[marks] == nil then
    any_asks[marks] = redis.pcall('EXISTS', marks) == 1
  end
  local until_ms = any_asks[marks] and redis.pcall('ZSCORE', marks, client_of(token))
  return type(until_ms) == 'string' and tonumber(until_ms) > server_us() / 1000
end

-- Whether a client is there.
local function is_there(token, inboxes)
  return hears(token, inboxes) or asks(token)
end

-- The same for many (every `step`-th of the list): true for each that is, or is `me`.
local function are_there(tokens, step, inboxes, me)
  local channels, sharded, near, there = {}, {}, nil, {}
  for at = 1, #tokens, step do
    local channel, its = inboxes_of(tokens[at], inboxes)
    channels[#channels + 1], sharded[#sharded + 1] = channel, its or channel
    near = near or its
  end
  near = near and redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(sharded)) or {}
  local counted = if_allowed(redis.pcall('PUBSUB', 'NUMSUB', unpack(channels))) or {}
  for at = 1, #channels do
    local token = tokens[(at - 1) * step + 1]
    there[at] = (counted[2 * at] or 0) + (near[2 * at] or 0) > 0 or token == me or asks(token)
  end
  return there
end

-- Take the dead of these members out of a queue. Returns the others.
local function living(queue, tokens, inboxes, me)
  local alive, dead = {}, {}
  for at, there in ipairs(are_there(tokens, 1, inboxes, me)) do
    local list = there and alive or dead
    list[#list + 1] = tokens[at]
  end
  if dead[1] then
    redis.call('ZREM', queue, unpack(dead))
  end
  return alive
end

-- In how many ms the asker, which waits, is to ask again: `ms` where it is told. `place` in the queue; `arrival` there
-- in µs, 0 where it does not say.
local function ask_again_ms(token, inboxes, ms, place, arrival)
  if string.sub(inboxes, 1, 1) ~= '?' then
    return ms
  end
  leave_tombstones(marks, {client_of(token)}, THERE_MS)
  local waited_ms = (server_us() - arrival) / 1000
  local soon_ms = math.min(math.max(waited_ms / ASK_PART, ASK_FIRST_MS), ASK_LATER_MS) * (place + 1)
  soon_ms = math.floor(math.min(soon_ms, ASK_MAX_MS))
  return ms < 0 and soon_ms or math.min(ms, soon_ms)
end
