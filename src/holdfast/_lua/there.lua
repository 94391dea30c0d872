-- See which clients are there: they can be told something, or ask.
-- KEYS    gone, of what they wait for
-- ARGV    1 prefix of inboxes, then the id of each client
-- Returns for each 1, or 0: it is not
-- #include inboxes
local inboxes = table.remove(ARGV, 1)
local found = {}
for at, there in ipairs(are_there(ARGV, 1, inboxes)) do
  found[at] = there and 1 or 0
end
return found
