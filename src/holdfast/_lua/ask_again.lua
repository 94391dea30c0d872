-- Part: in how many ms the asker, which waits, is to ask again: `ms` where it is told. `place` in the queue; `arrival`
-- there in µs, 0 where it does not say. Needs inboxes.
local function ask_again_ms(token, ms, place, arrival)
  if not deaf then
    return ms
  end
  -- How long a mark lasts, ms. A waiter further back asks at least three times meanwhile.
  local THERE_MS, ASK_MAX_MS = 3000, 900
  -- The first of a queue asks again after a part of the time that it has waited, within these bounds, ms.
  local ASK_FIRST_MS, ASK_LATER_MS, ASK_PART = 10, 100, 16
-- #include tombstone
  leave_tombstones(marks, {(inboxes_of(token))}, THERE_MS)
  local waited_ms = (now_us - arrival) / 1000
  local soon_ms = math.min(math.max(waited_ms / ASK_PART, ASK_FIRST_MS), ASK_LATER_MS) * (place + 1)
  soon_ms = math.floor(math.min(soon_ms, ASK_MAX_MS))
  return ms < 0 and soon_ms or math.min(ms, soon_ms)
end
