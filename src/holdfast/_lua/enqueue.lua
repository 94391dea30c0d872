-- Part: take the place of `arrival` in the queue, in a script that is given it as ARGV 4; sets `new`: whether it has just
-- come. LT: a late repeat of the first try may have queued us again meanwhile; the true arrival is the earliest.
new = redis.call('ZADD', queue, 'LT', string.format('%.0f', arrival), token) == 1
if not new and tonumber(ARGV[4]) <= 0 then
  -- Queued by an earlier try whose answer was lost: that one's arrival counts.
  arrival = tonumber(redis.call('ZSCORE', queue, token))
end
