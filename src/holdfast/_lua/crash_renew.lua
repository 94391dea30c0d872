-- Extend the lease of a lock that ends soon after its client has gone, and note that its client is there.
-- KEYS    1 lock  2 the lease's order of extensions  3 crash; with the first alone it only lengthens
-- ARGV    1 token  2 ttl_ms from now  3, 4 as of renew  5 prefix of inboxes
-- Returns what renew does; -2: extended, but it is not known that the client listens, or which run of the server this is
local inboxes = ARGV[5]
-- #include server_time
-- #include inboxes
-- #include crash
local function renew()
-- #include renew
end

local lasting_ms = renew()
if lasting_ms == 0 or KEYS[3] and note_alive(KEYS[3], ARGV[1], math.max(lasting_ms, ARGV[2])) then
  return lasting_ms
end
return -2
