-- Acquire a lock whose lease ends soon after its client has gone: as acquire, for a client that listens.
-- KEYS    1 lock  2 fence  3 queue  4 gone  5 crash
-- ARGV    those of acquire
-- Returns what acquire does
--         {-2}   nothing was done: the client does not listen here
--         {-3}   the same: it is not known whether it does, or which run of the server this is
local inboxes = ARGV[7]
-- #include server_time
-- #include inboxes
-- #include crash
local function acquire()
-- #include acquire
end

local there = listens(ARGV[1])
if not (there and run_id()) then
  return {there == false and -2 or -3}
end
local reply = acquire()
if reply[1] == 1 then
  note_alive(KEYS[5], ARGV[1], ARGV[2])
end
return reply
