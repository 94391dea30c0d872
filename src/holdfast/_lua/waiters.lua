-- Part: which of the waiters are still there. What one call does is bounded: it looks at LOOKS_MAX entries, leaves the
-- rest as it is, and says that it is not done. Needs server_time.
-- #include limits
-- #include inboxes
local looks_left = LOOKS_MAX
-- How many queues one call has looked after by a waiter of theirs.
local NUDGES_MAX = 4
local nudges_left = NUDGES_MAX
-- #include send
-- #include gone_of
