"""A drop-in for redis-py's Lock: `redis.Redis(...).lock(name, lock_class=holdfast.compat.redis.Lock)`.

For its asyncio clients: `holdfast.compat.redis.asyncio.Lock`.
"""

from holdfast.compat.redis._sync.lock import Lock, locks_of
from holdfast.compat.redis.errors import *

__all__ = [
    "ConnectionError",
    "Lock",
    "LockError",
    "LockNotHeldError",
    "LockNotOwnedError",
    "LockTimeoutError",
    "ResponseError",
    "TimeoutError",
    "locks_of",
]
