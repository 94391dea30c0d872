-- Tell a holder that its place is wanted, or that it is taken away; or only look whether it holds still.
-- KEYS    1 lock  2 readers, or a semaphore's holders  3 upgraded  4 gone  5 note
-- ARGV    1 token  2 prefix of inboxes  3 "break" or "want"; "" tells nothing  4 who says so, and why
--         5 > 0: for how many ms that stands in the note, for a holder that does not hear the message
-- Returns 2 it holds, and was told; 1 it holds, and its client has no inbox; 0 it does not hold
-- #include server_time
-- #include holder
local token, inboxes = ARGV[1], ARGV[2]
-- #include inboxes
-- #include send
-- #include gone_of
local over_ms = redis.call('ZSCORE', KEYS[2], token)
local holds = over_ms and tonumber(over_ms) > now_ms or holder_of(KEYS[1]) == token or redis.call('GET', KEYS[3]) == token
if not holds then
  return 0
end
if tonumber(ARGV[5]) > 0 then
  redis.pcall('SET', KEYS[5], ARGV[4], 'PX', ARGV[5]) -- without memory for it, there is the message
end
if ARGV[3] == '' then
  return not gone_of({token})[1] and 2 or 1
end
return send(token, ARGV[3] .. ' ' .. token .. ' ' .. ARGV[4]) > 0 and 2 or 1
