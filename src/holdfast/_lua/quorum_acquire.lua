-- Acquire a lock on one member of a quorum: this member's vote.
-- KEYS    1 lock  2 fence  3 gone
-- ARGV    1 token  2 hint_us: the fencing token that the client proposes to all members, or 0  3 ttl_ms  4 fence_ms
--         5 restart_delay_ms: up for less than this, it may have forgotten a lease and does not vote
--         6 "check" says who it is too (the set-up may be wrong), "" does not
-- Returns {1, fencing token, server's time_us, run id or ""}     granted (also to a repeat)
--         {0, holder's remaining ms (-1: no ttl), holder}      taken
--         {-1}                                                   this token was given back before
--         {-2, ms until it votes (-1: its uptime is a secret)}   does not vote
--         {-3, role}                                             is not a master
-- #include fence
-- Servers count their uptime in whole seconds: one more has to pass.
local WHOLE_SECOND_MS = 1000
-- How far a proposed fencing token may be ahead of this server's clock, µs.
local AHEAD_MAX_US = 10000000
local lock, fence_key, gone = KEYS[1], KEYS[2], KEYS[3]
local token, hint, ttl_ms, fence_ms, delay_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5])
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

-- #include server_time
if delay_ms > 0 then
  -- LASTSAVE is never before the start, and a hundred times cheaper than INFO: long ago, it settles the matter.
  local saved = redis.pcall('LASTSAVE')
  if type(saved) ~= 'number' or (server_time[1] - saved) * 1000 < delay_ms + WHOLE_SECOND_MS then
    local said = redis.pcall('INFO', 'server')
    local uptime_s = type(said) == 'string' and tonumber(string.match(said, 'uptime_in_seconds:(%d+)'))
    if not uptime_s then
      return {-2, -1}
    end
    if uptime_s * 1000 < delay_ms + WHOLE_SECOND_MS then
      return {-2, delay_ms + WHOLE_SECOND_MS - uptime_s * 1000}
    end
  end
end

-- A proposal far ahead of our clock is that of a broken clock, and would stay.
local wish = now_us
if hint > now_us and hint < now_us + AHEAD_MAX_US then
  wish = hint
end
-- #include holder
local holder = holder_of(lock)
if holder and holder ~= token then
  return {0, redis.call('PTTL', lock), holder}
end
if redis.call('ZRANK', gone, token) then
  return {-1}
end
-- #include stored_fence
local last = holder and stored_fence(redis.call('GET', fence_key) or '0') or 0
local fence, wrong = last, nil
if last <= 0 then
  fence, wrong = next_fence(fence_key, fence_ms, wish)
end
if not fence then
  return wrong
end
-- A late repeat must not shorten what was extended since.
redis.call('SET', lock, token, 'PX', math.max(redis.call('PTTL', lock), tonumber(ttl_ms)))
if last > 0 then
  -- A repeat is told what it was told, and remembered as long as the first.
  redis.call('PEXPIRE', fence_key, fence_ms)
end
return {1, fence, now_us, run_id}
