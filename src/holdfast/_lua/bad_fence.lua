-- Part: the error that says that what a key holds is no fencing token.
-- #include format
local function bad_fence(key)
  local WRONG_BYTES = 64
  local value = string.gsub(string.sub(redis.call('GET', key) or '', 1, WRONG_BYTES), '[^ -~]', '?')
  return newer_format(key, value) or redis.error_reply('BADFENCE the key ' .. string.gsub(key, '%c', '?') .. ' has to hold a fencing token, a whole '
    .. 'number below 2^53 - 1, and holds "' .. value .. '": set it to the last token that was given, or delete it to go '
    .. "on from the server's time")
end
