-- Part: take a place in the queue, in a script that is given `arrival`, or minus the µs waited so far, as ARGV 4. Sets
-- `new`: whether it has just come. Needs server_time.
if arrival <= 0 then
  arrival = now_us + arrival
end
-- LT: a late repeat of the first try may have queued us again meanwhile; the true arrival is the earliest.
new = redis.call('ZADD', queue, 'LT', string.format('%.0f', arrival), token) == 1
if not new and tonumber(ARGV[4]) <= 0 then
  -- Queued by an earlier try whose answer was lost: that one's arrival counts.
  arrival = tonumber(redis.call('ZSCORE', queue, token))
end
