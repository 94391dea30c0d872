-- Part: the end of an acquisition that is not granted, in a script that is given the prefix of inboxes as ARGV 7. Needs
-- limits and waiters; and queue, token, waits, new, remaining_ms, holder and arrival.
local place = -1
if waits then
  place = trim(queue, ARGV[7], redis.call('ZRANK', queue, token), new and TRIM_FIRST or TRIM_AGAIN)
  -- Waiters ask again when a holder's time is over, and so keep the queue alive.
  redis.call('PEXPIRE', queue, string.format('%.0f', math.max(remaining_ms, 0) + SLACK_MS))
end
return {0, remaining_ms, string.sub(holder or '', 1, HOLDER_BYTES), place, arrival}
