-- Part: how clients are told something, and whether they are there. Needs server_time, and `inboxes`: what the names of
-- their channels begin with. How a client listens stands in its id: one that begins with "c" is of a Cluster, and has a
-- sharded channel for each hash tag, in the slot of the keys; where it may not, or this server has none (before Redis 7),
-- and all others, one channel for everything.
-- A "?" before `inboxes` says that the caller's client cannot be told: then each of its asks leaves a mark among the
-- tokens that are gone, its id, so that it is there for others, and the answer says when to ask again.
local deaf = string.sub(inboxes, 1, 1) == '?'
if deaf then
  inboxes = string.sub(inboxes, 2)
end

-- Where marks are, and tokens that are gone: the fourth key of scripts, or the last of fewer. It has the hash tag.
local marks = KEYS[4] or KEYS[#KEYS]

-- A token's client, its one channel, and the sharded one or nil.
local function inboxes_of(token)
  local client, moves = string.match(token, '^((c?)[^:]*)')
  return client, inboxes .. client, moves == 'c' and inboxes .. string.match(marks, '{[^}]*}') .. client
end

-- The answer; nil where this server lets no script ask that. That only a user may not is raised.
local function if_allowed(answer)
  if type(answer) ~= 'table' or not answer.err then
    return answer
  elseif string.find(answer.err, 'ermission') or string.find(answer.err, 'ACL') or string.find(answer.err, "can't ") then
    error(answer.err, 2)
  end
end
