"""The engine: one thread for each process, which owns sockets, protocols, schedules and subscriptions."""
