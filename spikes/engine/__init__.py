"""A spike of the engine of docs/design/0047: one thread for each process, one server, the API for threads."""
