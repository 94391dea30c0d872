-- See whether a script can tell a client something: to be sent where it listens.
-- KEYS    1 what it listens for; of a client of a Cluster with the hash tag of the channel
-- ARGV    1 the client's id  2 prefix of inboxes
-- Returns 2 it was told, by a message that says nothing; 1 it cannot be told, though it is known to listen; 0 neither
local inboxes = ARGV[2]
local now_ms = 0 -- it looks for no marks
-- #include inboxes
-- #include send
-- #include gone_of
return not gone_of({ARGV[1]})[1] and (send(ARGV[1], 'ask ') > 0 and 1 or 0) + 1 or 0
