"""A drop-in for the Lock of redis-py's asyncio clients, by `lock_class=holdfast.compat.redis.asyncio.Lock`."""

from holdfast.compat.redis import errors as _errors
from holdfast.compat.redis._async.lock import Lock, locks_of
from holdfast.compat.redis.errors import *

__all__ = ["Lock", "locks_of"]
__all__ += _errors.__all__
