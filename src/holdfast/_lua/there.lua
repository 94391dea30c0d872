-- See which clients are there: they can be told something, or ask.
-- KEYS    gone, of what they wait for
-- ARGV    1 prefix of inboxes, then the id of each client
-- Returns for each 1, or 0: it is not
local inboxes = table.remove(ARGV, 1)
-- #include server_time
-- #include inboxes
-- #include gone_of
local gone, found = gone_of(ARGV), {}
for at = 1, #ARGV do
  found[at] = gone[at] and 0 or 1
end
return found
