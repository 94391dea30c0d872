-- Part: send a client a message. Returns how many have it for certain: 0 when it is not there, or listens at another node.
-- Needs inboxes.
local function send(token, message)
  local _, channel, sharded = inboxes_of(token)
  local told = sharded and redis.pcall('SPUBLISH', sharded, message)
  if type(told) == 'number' then
    local counted = told == 0 and if_allowed(redis.pcall('PUBSUB', 'NUMSUB', channel))
    if not counted or counted[2] == 0 then
      return told -- what is published the other way goes to every node
    end
  end
  return if_allowed(redis.pcall('PUBLISH', channel, message)) or 0
end
