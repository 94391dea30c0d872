-- Part: the end of an acquisition that is not granted, in a script that is given the prefix of inboxes as ARGV 7. Needs
-- limits and waiters; and queue, token, waits, new, remaining_ms, holder and arrival.
local place = -1
if waits then
  local most = tonumber(ARGV[3])
  place = trim(queue, ARGV[7], redis.call('ZRANK', queue, token), new and TRIM_FIRST or TRIM_AGAIN)
  if new and most and place >= most then
    local left = trim(queue, ARGV[7], place, LOOKS_MAX)
    if left >= most then
      redis.call('ZREM', queue, token)
      if left < place then
        return {0, 0, '', -1, arrival} -- there may be more dead ones: ask again
      end
      left = -2
    end
    place = left
  end
  -- Waiters ask again when a holder's time is over, and so keep the queue alive.
  redis.call('PEXPIRE', queue, string.format('%.0f', math.max(remaining_ms, 0) + SLACK_MS))
  remaining_ms = ask_again_ms(token, ARGV[7], remaining_ms, place, arrival)
end
return {0, remaining_ms, string.sub(holder or '', 1, HOLDER_BYTES), place, arrival}
