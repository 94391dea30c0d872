"""Distributed locks on Redis and Valkey, for trio: the names of `holdfast.asyncio`, under trio.

import holdfast.trio

locks = holdfast.trio.connect()
async with locks.lock("orders:42", ttl=30) as lease:
    await write(row, fence=lease.fencing_token)

The classes are those of `holdfast.asyncio`, which find out what runs the task that calls them: a program on anyio may
use either name. When a lease is lost, the cancel scope of its block is cancelled, and `LeaseLost` comes out of it.
"""

from holdfast.asyncio import *  # noqa: F403

try:
    import trio as _trio  # noqa: F401
except ModuleNotFoundError as _error:
    _error.msg = "holdfast.trio needs trio: pip install trio"
    raise
