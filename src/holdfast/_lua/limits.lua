-- Part: limits and marks that several scripts share.
-- Keys are kept for this much longer than needed, ms: waiters ask again meanwhile, which extends it.
local SLACK_MS = 60000
-- What is read and shown of a lock's value, bytes: another program's may be of any size.
local HOLDER_BYTES = 200
-- How many entries whose time is over one call takes out.
local PURGE_MAX = 500
-- The same of a renewal, many of which share a call.
local RENEWAL_PURGE_MAX = 25
-- How many entries of queues one call looks at.
local LOOKS_MAX = 256
-- How many queue entries right before its own a waiter looks at: when it comes, and when it asks again.
local TRIM_FIRST, TRIM_AGAIN = 4, 32
-- Holds the lock's key while there are readers.
local SHARED = '000000000000000000000000:shared:0'
