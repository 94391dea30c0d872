-- Part: the end of an acquisition that is not granted. Needs limits and waiters; and queue, token, waits, new,
-- remaining_ms, holder and arrival.
local place = -1
if waits then
  local most = tonumber(ARGV[3])
  place = redis.call('ZRANK', queue, token) or -1
  if place > 0 or most then
-- #include trim
    place = trim(queue, place, new and TRIM_FIRST or TRIM_AGAIN)
    if new and most and place >= most then
      local left = trim(queue, place, LOOKS_MAX)
      if left >= most then
        redis.call('ZREM', queue, token)
        if left < place then
          return {0, 0, '', -1, arrival} -- there may be more dead ones: ask again
        end
        left = -2
      end
      place = left
    end
  end
  -- Waiters ask again when a holder's time is over, and so keep the queue alive.
  redis.call('PEXPIRE', queue, string.format('%.0f', math.max(remaining_ms, 0) + SLACK_MS))
-- #include ask_again
  remaining_ms = ask_again_ms(token, remaining_ms, place, arrival)
end
return {0, remaining_ms, string.sub(holder or '', 1, HOLDER_BYTES), place, arrival}
