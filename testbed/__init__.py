"""What tests, rig and bench put a client on: real servers, several that belong together, and a proxy between.

Imported by all three, and importing none of them; not part of the package. `servers` starts Valkey and Redis,
`topologies` a quorum, a Sentinel's master, a Cluster; `proxy` drops, delays and resets on loopback; `leaks` looks for
what a process or a server keeps; `waiting` waits for a condition.
"""
