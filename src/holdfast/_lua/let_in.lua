-- Part: granting permits to those that wait. Needs permits, and what that needs.

-- The limit that `let_in` was given, and how many permits are out, once that was asked for.
local most, taken
local function fits(head)
  local weight = weight_of(head)
  if weight > most then
    return nil -- the limit was lowered beneath it
  end
  taken = taken or used()
  return taken + weight <= most
end
local function give(head, window_ms)
  put(head, weight_of(head), window_ms)
  taken = taken + weight_of(head)
  return false
end
-- #include advance

-- Grant from the head of the queue as long as it fits; what comes after the head waits, however small it is.
local function let_in(limit, ...)
  most, taken = limit, nil
  return advance(...)
end
