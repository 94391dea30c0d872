"""A drop-in for redis-py's Lock: `redis.Redis(...).lock(name, lock_class=holdfast.compat.redis.Lock)`.

For its asyncio clients: `holdfast.compat.redis.asyncio.Lock`.
"""

from holdfast.compat.redis._sync.lock import Lock, locks_of
from holdfast.compat.redis.errors import *

__all__ = ["Lock", "locks_of"]
__all__ += ["ConnectionError", "LockError", "LockNotHeldError", "LockNotOwnedError", "LockTimeoutError"]
__all__ += ["ResponseError", "TimeoutError"]
