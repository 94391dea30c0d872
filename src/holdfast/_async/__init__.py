"""The asyncio API, which is also the source of the threads API: `_sync` is generated from it.

By hand in both: how a loss is told (`loss`), how a lock is acquired and released (`kernel`), and how a client begins
and ends (`lifecycle`).
"""
