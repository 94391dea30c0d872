-- Renew many leases in one call: each as its own script does, and none spoils another.
-- KEYS    those of each lease's own script, one lease after the other
-- ARGV    for each group of leases that differ by keys and token alone: 1 script  2 how many leases  3 keys of each
--         4 how many arguments follow a token in its script; these arguments; the tokens
-- Returns for each lease what its own script answers; -1: ask for it alone (an error, or too much for a part of a call)
local scripts = {
  renew = function(KEYS, ARGV)
-- #include renew
  end,
  crash_renew = function(KEYS, ARGV)
-- #include crash_renew
  end,
  multi_renew = function(KEYS, ARGV)
-- #include multi_renew
  end,
  sem_renew = function(KEYS, ARGV)
-- #include sem_renew
  end,
  rw_renew = function(KEYS, ARGV)
    -- A reader that was handed the lock's own key: the queue has to be gone through.
    if string.find(ARGV[1], '^[^:]*:r%.') and redis.call('GETRANGE', KEYS[1], 0, #ARGV[1]) == ARGV[1] then
      return -1
    end
-- #include rw_renew
  end,
}

local answers, key, at = {}, 1, 1
while ARGV[at] do
  local script, count = scripts[ARGV[at]], tonumber(ARGV[at + 1])
  local width, more = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local args = {'', unpack(ARGV, at + 4, at + 3 + more)}
  at = at + 4 + more
  for _ = 1, count do
    args[1] = ARGV[at]
    at = at + 1
    local done, answer = pcall(script, {unpack(KEYS, key, key + width - 1)}, args)
    key = key + width
    answers[#answers + 1] = done and type(answer) == 'number' and answer or -1
  end
end
return answers
