-- Acquire a lock on one member of a quorum: this member's vote.
-- KEYS    1 lock  2 fence  3 gone
-- ARGV    1 token  2 ttl_ms  3 fence_ms  4 hint_us: the fencing token that the client proposes to all members, or 0
--         5 restart_delay_ms: up for less than this, it may have forgotten a lease and does not vote
--         6 "check" says who it is too (the set-up may be wrong), "" does not
-- Returns {1, fencing token, server's time_us, run id or ""}     granted (also to a repeat)
--         {0, holder's remaining ms (-1: for ever), holder}      taken
--         {-1}                                                   this token was given back before
--         {-2, ms until it votes (-1: its uptime is a secret)}   does not vote
--         {-3, role}                                             is not a master
local lock, fence_key = KEYS[1], KEYS[2]
local token, ttl_ms, hint, delay_ms = ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])
local run_id = ''
if ARGV[6] == 'check' then
  local said = redis.pcall('INFO', 'replication')
  local role = type(said) == 'string' and string.match(said, 'role:(%a+)')
  if role and role ~= 'master' then
    return {-3, role}
  end
  said = redis.pcall('INFO', 'server')
  run_id = type(said) == 'string' and string.match(said, 'run_id:(%x+)') or ''
end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
if delay_ms > 0 then
  -- LASTSAVE is never before the start, and a hundred times cheaper than INFO: long ago, it settles the matter.
  -- Both count whole seconds, so that one more has to pass.
  local saved = redis.pcall('LASTSAVE')
  if type(saved) ~= 'number' or (clock[1] - saved) * 1000 < delay_ms + 1000 then
    local said = redis.pcall('INFO', 'server')
    local uptime_s = type(said) == 'string' and tonumber(string.match(said, 'uptime_in_seconds:(%d+)'))
    if not uptime_s then
      return {-2, -1}
    end
    if uptime_s * 1000 < delay_ms + 1000 then
      return {-2, delay_ms + 1000 - uptime_s * 1000}
    end
  end
end

local holder = redis.call('GET', lock)
if holder and holder ~= token then
  return {0, redis.call('PTTL', lock), holder}
end
if redis.call('SISMEMBER', KEYS[3], token) == 1 then
  return {-1}
end
redis.call('SET', lock, token, 'PX', ttl_ms)
local last = tonumber(redis.call('GET', fence_key) or 0)
local fence = now
-- A proposal far ahead of our clock is somebody's broken clock, and would stay.
if hint > fence and hint < now + 10000000 then
  fence = hint
end
if holder and last > 0 then
  fence = last
elseif last >= fence then
  fence = last + 1
end
redis.call('SET', fence_key, string.format('%.0f', fence), 'PX', ARGV[3])
return {1, fence, now, run_id}
