-- Turn a writer into a reader, and let in the readers that are next.
-- KEYS    1 lock  2 fence  3 queue  4 gone  5 readers  6 upgraded
-- ARGV    1 token of the writer  2 token of the reader  3 ttl_ms  4 fence_ms  5 claim_ms  6 prefix of inboxes
--         7 tombstone_ms: > 0 refuses the writer's token for that long (a delayed acquire may follow)
-- Returns {1, fencing token} now a reader (also to a repeat), {0} not the writer
-- #include fence
-- #include server_time
-- #include holder
-- #include readers
local writer, reader, ttl_ms, inboxes = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[6]
local holder = current()
if redis.call('ZRANK', gone, reader) or holder ~= writer and not reads(reader, holder) then
  return {0}
end
local fence, wrong = next_fence(fence_key, ARGV[4], now_us)
if not fence then
  return wrong
end
purge(PURGE_MAX)
-- GT: a late repeat must not shorten what was extended since.
redis.call('ZADD', readers, 'GT', plain(now_ms + ttl_ms), reader)
if not holder or holder == writer or holder == SHARED then
  mirror()
end
if tonumber(ARGV[7] or 0) > 0 then
  redis.call('ZREM', queue, writer)
-- #include tombstone
  leave_tombstones(gone, {writer}, ARGV[7])
end
-- #include let_readers_in
let_in(nil, 0, tonumber(ARGV[5]), ARGV[4])
return {1, fence}
