-- Part: refuse what a newer version has written, in another format than this one knows. What every grant reads (the last
-- fencing token; a gate's state, a barrier's parties) is "F", the number of the format and a space before the rest in all
-- formats but the first.
local function newer_format(key, value)
  local format = string.match(value or '', '^F(%d+) ')
  return format and redis.error_reply('NEWERFORMAT the key ' .. string.gsub(key, '%c', '?') .. ' is in format ' .. format
    .. ', and this version of holdfast knows only format 1: update it')
end
