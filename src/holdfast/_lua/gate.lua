-- Part: what is stored of a gate, as gate_wait has it. Needs format; ends where another count is declared in ARGV 4.
local stored = redis.call('GET', state)
local newer = newer_format(state, stored)
if newer then
  return newer
end
local missing, declared, openings, first = string.match(stored or '', '^(%d+) (%d+) (%d+) (%d+)$')
if declared and declared ~= ARGV[4] then
  return {-2, tonumber(declared)}
end
