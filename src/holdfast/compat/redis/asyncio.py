"""A drop-in for the Lock of redis-py's asyncio clients, by `lock_class=holdfast.compat.redis.asyncio.Lock`."""

from holdfast.compat.redis._async.lock import Lock, locks_of
from holdfast.compat.redis.errors import *

__all__ = ["Lock", "locks_of"]
__all__ += ["ConnectionError", "LockError", "LockNotHeldError", "LockNotOwnedError", "LockTimeoutError"]
__all__ += ["ResponseError", "TimeoutError"]
