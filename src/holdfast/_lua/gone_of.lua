-- Part: which clients are gone: neither can they be told anything, nor do they ask. By the places of these tokens, true
-- for each whose client is; `me` is there. Needs inboxes.
local function gone_of(tokens, me)
  local channels, near, gone = {}, nil, {}
  for at = 1, #tokens do
    local _, channel, sharded = inboxes_of(tokens[at])
    channels[at], near = channel, near or sharded
  end
  local counted = if_allowed(redis.pcall('PUBSUB', 'NUMSUB', unpack(channels))) or {}
  for at = 1, near and #tokens or 0 do
    local _, channel, sharded = inboxes_of(tokens[at])
    channels[at] = sharded or channel
  end
  near = near and redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(channels)) or {}
  local any_asks
  for at = 1, #tokens do
    if (counted[2 * at] or 0) + (near[2 * at] or 0) == 0 and tokens[at] ~= me then
      if any_asks == nil then
        any_asks = redis.pcall('EXISTS', marks) == 1
      end
      local until_ms = any_asks and redis.pcall('ZSCORE', marks, (inboxes_of(tokens[at])))
      gone[at] = not (type(until_ms) == 'string' and tonumber(until_ms) > now_ms) or nil
    end
  end
  return gone
end
