-- Part: changing who holds permits. Needs limits and server_time.
-- #include held_permits

-- Take out holders whose time is over; of very many, `most`. Those that stay count as holders with
-- what they have beyond one permit: returns whether there are such, so that another call has to go on.
local function purge(most)
  if extra == 0 then
    if redis.call('ZCOUNT', holders, '-inf', plain(now_ms)) > most then
      redis.call('ZREMRANGEBYRANK', holders, 0, most - 1)
    else
      redis.call('ZREMRANGEBYSCORE', holders, '-inf', plain(now_ms))
    end
    return false
  end
  most = math.min(most, OVER_MAX)
  local sum, over = over_by(most)
  redis.call('ZREM', holders, '', unpack(over))
  extra = extra - sum
  return #over == most
end

local function put(token, weight, ttl_ms)
  if redis.call('ZADD', holders, plain(now_ms + ttl_ms), token) == 1 then
    extra = extra + weight - 1
  end
end

local function shown(limit, declared)
  return plain(limit) .. ' ' .. plain(declared) .. (extra > 0 and ' ' .. plain(extra) or '')
end

-- Let `extra` be stored, where it has changed.
local function keep_extra(limit, declared)
  if extra ~= kept_extra then
    redis.call('SET', limit_key, shown(limit, declared), 'KEEPTTL')
    kept_extra = extra
  end
end

local function is_held(token)
  local over_ms = redis.call('ZSCORE', holders, token)
  return over_ms and tonumber(over_ms) > now_ms
end

-- Keep the holders as long as the last of them needs; returns how long that is.
local function keep_holders()
  local last = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')
  local left_ms = last[2] and math.max(tonumber(last[2]) - now_ms, 0) or 0
  redis.call('PEXPIRE', holders, plain(left_ms + SLACK_MS))
  return left_ms
end

-- Keep all keys for as long as they are needed: the holders' last moment, and a day for the limit.
local function keep(limit, declared, keep_ms)
  local left_ms = keep_holders()
  redis.call('SET', limit_key, shown(limit, declared), 'PX', plain(tonumber(keep_ms) + left_ms))
  kept_extra = extra
end
