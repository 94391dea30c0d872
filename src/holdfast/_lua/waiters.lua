-- Part: which of the waiters are still there. What one call does is bounded: it looks at LOOKS_MAX entries, leaves the
-- rest as it is, and says that it is not done.
local LOOKS_MAX = 256
local looks_left = LOOKS_MAX
-- How many looks more a grant counts, and how many moving a waiter to another queue.
local GRANT_LOOKS, MOVE_LOOKS = 5, 2
-- How many of a queue's first entries are looked at together.
local SHED_MAX = 64
-- How many queues one call has looked after by a waiter of theirs; and how many entries, at either end, it asks.
local NUDGES_MAX, NUDGE_LOOKS = 4, 16
-- #include inboxes

-- Take the dead out of the first SHED_MAX of a queue. Does nothing for a user who may not ZRANGE.
local function shed(queue, inboxes, me)
  local first = redis.pcall('ZRANGE', queue, 0, SHED_MAX - 1)
  if not first.err and first[1] then
    looks_left = looks_left - #first
    living(queue, first, inboxes, me)
  end
end

-- Take the dead out of the `most` right before `place`, so that they do not pile up between releases. Returns the
-- place after that. For whom it does nothing: as above.
local function trim(queue, inboxes, place, most)
  if not place or place < 1 then
    return place or -1
  end
  local before = redis.pcall('ZRANGE', queue, math.max(place - most, 0), place - 1)
  if before.err or not before[1] then
    return place
  end
  return place - #before + #living(queue, before, inboxes)
end

-- A queue was not gone through to its end: ask one that is there, at either end, to look for itself and so go on with
-- it, should the caller not do that. For a few queues, since it takes time, too.
local nudges_left = NUDGES_MAX
local function nudge(queue, inboxes)
  nudges_left = nudges_left - 1
  for _, from in ipairs({0, -NUDGE_LOOKS}) do
    local some = nudges_left >= 0 and redis.pcall('ZRANGE', queue, from, from + NUDGE_LOOKS - 1) or {}
    if not some.err and some[1] then
      for at, there in ipairs(are_there(some, 1, inboxes)) do
        if there then
          send(some[at], inboxes, 'ask ' .. some[at])
          return
        end
      end
    end
  end
end
