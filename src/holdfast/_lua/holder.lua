-- Part: what a lock's key holds, as far as tokens are long: its value may be another program's, and of any size.
-- #include limits
local function holder_of(lock)
  local holder = redis.pcall('GETRANGE', lock, 0, HOLDER_BYTES - 1)
  if type(holder) == 'table' then
    -- A user who may not GETRANGE, or a key of another kind, which this tells.
    holder = redis.call('GET', lock)
    return holder and string.sub(holder, 1, HOLDER_BYTES)
  end
  return (holder ~= '' or redis.call('EXISTS', lock) == 1) and holder
end
