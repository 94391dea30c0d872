-- Part: the end of a script that gives back. Needs server_time; and gone, token, tombstone_ms and result.
if tombstone_ms > 0 then
-- #include tombstone
  leave_tombstones(gone, {token}, tombstone_ms)
end
return result
