-- Part: what a request still changes that arrives after later ones of the same lease.
-- Only an extension sets an end, and only extensions are numbered. All else (a renewal, a repeat, a confirmation) never
-- shortens: it may have been sent before an extension that has been carried out. An extension that asks for another ttl
-- than those before it leaves its number; what was sent before it and comes later then changes nothing.

-- For how many ms the lease lasts after this request, of which `left_ms` are there already. `number`: of the last
-- extension that had been sent, this one included; `mark_ms`: -1 for what only lengthens.
local function lasting(left_ms, ttl_ms, key, number, mark_ms)
  if key and tonumber(redis.call('GET', key) or 0) > tonumber(number or 0) then
    return left_ms > 0 and left_ms or ttl_ms
  elseif tonumber(mark_ms or -1) < 0 then
    return math.max(left_ms, ttl_ms)
  end
  return ttl_ms
end

-- Leave the number for `mark_ms`, if that is > 0. After the first write of a script: then a server without memory
-- lets it pass.
local function mark(key, number, mark_ms)
  if tonumber(mark_ms or -1) > 0 and tonumber(redis.call('GET', key) or 0) <= tonumber(number) then
    redis.call('SET', key, number, 'PX', mark_ms)
  end
end
