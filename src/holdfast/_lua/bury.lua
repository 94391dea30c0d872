-- Part: refuse a token from now on, since a delayed request of it may follow.
local function bury(gone, token, bury_ms)
  -- SADD answers with a number, or with a table when memory is refused: then nothing is buried.
  if type(redis.pcall('SADD', gone, token)) == 'number' then
    redis.call('PEXPIRE', gone, bury_ms)
  end
end
