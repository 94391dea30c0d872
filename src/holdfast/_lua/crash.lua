-- Part: leases that end soon after their client has gone. Their tokens end with "!" and after how many ms. Beside the
-- lock stands "alive RUN TOKEN" from when a script of the holder saw its inbox subscribed, and "gone RUN TOKEN MS" from
-- when one of others did not, at that ms. RUN: of the server, as a master. The holder trusts what it has sent the former
-- by; only the latter ends its lease. Where it was not renewed yet, as after a failover, the ttl decides. Needs inboxes.
local function run_id()
  local said = redis.pcall('INFO', 'replication')
  return type(said) == 'string' and string.match(said, 'master_replid:(%x+)')
end

-- Whether the holder listens here; nil where that is not known.
local function listens(token)
  local _, channel, sharded = inboxes_of(token)
  local one = redis.pcall('PUBSUB', 'NUMSUB', channel)
  local near = sharded and redis.pcall('PUBSUB', 'SHARDNUMSUB', sharded)
  if not one.err and not (near and near.err) then
    return one[2] > 0 or near and near[2] > 0 or false
  end
end

-- Note that the holder is there. Returns whether it is, for certain.
local function note_alive(key, token, ms)
  local run = listens(token) and run_id()
  if run then
    redis.call('SET', key, 'alive ' .. run .. ' ' .. token, 'PX', ms)
  end
  return run
end

-- In how many ms the holder has been away for long enough; nil: it is there, or the ttl decides.
local function gone_in_ms(key, token, left_ms)
  local RATES_APART = 1.01 -- of clocks, as in validity.py
  if listens(token) ~= false then
    return nil
  end
  local said, run, rest = string.match(redis.call('GET', key) or '', '^(%l+) (%x+) (.+)$')
  local known, since = string.match(rest or '', '^(%S+) ?(%d*)$')
  if known ~= token or run ~= run_id() then
    return nil
  end
  since = said == 'alive' and now_ms or said == 'gone' and tonumber(since)
  if not since then
    return nil
  elseif said == 'alive' then
    redis.pcall('SET', key, string.format('gone %s %s %.0f', run, token, since), 'PX', math.max(left_ms, 1))
  end
  return since + math.ceil(string.match(token, '%d+$') * RATES_APART) + 1 - now_ms
end
