-- Part: leased permits, and how many are in use. Needs server_time; KEYS 1 limit 2 fence 3 queue 4 gone 5 holders.
-- Holders stand in a sorted set, each scored with the ms at which its own time is over; how many permits a token
-- is about is in its middle: `<k>.…`. The limit's key holds two numbers: the limit of now, and the declared one; and a
-- third while holders have more than one permit each: how many they have beyond one, so that none has to be looked at.
local limit_key, fence_key, queue, gone, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- Permits beyond one of each that stands among the holders; and that number as it is stored.
local extra, kept_extra = 0, 0

-- At how many that are over, with more than one permit each, one call looks.
local OVER_MAX = 200

local function plain(number)
  return string.format('%.0f', number)
end

local function weight_of(token)
  return tonumber(string.match(token, '^[^:]*:(%d+)%.')) or 1
end

-- Limit of now and declared limit, or nothing; also finds `extra`, where they were not lost.
local function stored_limit()
  local limit, declared, more = string.match(redis.call('GET', limit_key) or '', '^(%d+) (%d+) ?(%d*)$')
  extra = redis.call('EXISTS', holders) == 1 and tonumber(more or '') or 0
  kept_extra = tonumber(more or '') or 0
  return tonumber(limit), tonumber(declared)
end

-- What the first `most` holders (0: all) have beyond one permit: the limit was lost, and they are left.
local function count_extra(most)
  for _, token in ipairs(redis.call('ZRANGE', holders, 0, most - 1)) do
    extra = extra + weight_of(token) - 1
  end
end

-- What those among the first `most` have beyond one permit whose time is over, and who that is.
local function over_by(most)
  local over, sum = redis.call('ZRANGEBYSCORE', holders, '-inf', plain(now_ms), 'LIMIT', 0, most), 0
  for _, token in ipairs(over) do
    sum = sum + weight_of(token) - 1
  end
  return sum, over
end

local function used()
  return redis.call('ZCOUNT', holders, '(' .. plain(now_ms), '+inf') + extra
end
