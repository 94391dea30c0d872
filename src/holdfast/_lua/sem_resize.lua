-- Change the limit of a semaphore, and let in who fits now. Who holds more than the new limit keeps it.
-- KEYS    1 limit  2 fence  3 queue  4 gone  5 holders
-- ARGV    1 new limit  2 fence_ms  3 claim_ms  4 prefix of inboxes
-- Returns the limit before, or 0 where there was none
local wanted, inboxes = tonumber(ARGV[1]), ARGV[4]
-- #include fence
-- #include server_time
-- #include limits
-- #include permits
-- #include let_in
local limit, declared = stored_limit()
if not limit then
  count_extra(0)
end
purge(PURGE_MAX)
keep(wanted, declared or wanted, ARGV[2])
let_in(wanted, nil, 0, tonumber(ARGV[3]), ARGV[2])
keep(wanted, declared or wanted, ARGV[2])
return limit or 0
