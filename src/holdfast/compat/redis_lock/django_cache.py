"""A drop-in for python-redis-lock's cache for Django, on django-redis as that one.

CACHES = {"default": {"BACKEND": "holdfast.compat.redis_lock.django_cache.RedisCache", "LOCATION": "redis://…"}}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT
from django_redis.cache import RedisCache as PlainRedisCache

from holdfast.compat import redis_lock

__all__ = ["RedisCache"]


class RedisCache(PlainRedisCache):  # type: ignore[misc] # no types
    """django-redis' cache, with locks."""

    @property
    def _raw(self) -> Any:
        return self.client.get_client()

    def lock(
        self, key: str, expire: Any = None, id: str | bytes | None = None, auto_renewal: bool = False
    ) -> redis_lock.Lock:
        """A lock, in the server of this cache."""
        return redis_lock.Lock(self._raw, key, expire=expire, id=id, auto_renewal=auto_renewal)

    def locked_get_or_set(
        self,
        key: str,
        value_creator: Callable[[], Any],
        version: int | None = None,
        expire: Any = None,
        id: str | bytes | None = None,
        lock_key: str | None = None,
        timeout: Any = DEFAULT_TIMEOUT,
    ) -> Any:
        """The value of `key`; where there is none, one caller makes it, and the others wait for that."""
        value = self.get(key, version=version)
        if value is not None:
            return value
        with self.lock(lock_key or f"get_or_set:{key}", expire=expire, id=id):
            value = self.get(key, version=version)
            if value is None:
                value = value_creator()
                if value is None:
                    raise ValueError("value_creator returned None, which is what the cache says of a key it lacks")
                self.set(key, value, timeout=timeout, version=version)
        return value

    def reset_all(self) -> None:
        """Take all locks of the server from their holders."""
        redis_lock.reset_all(self._raw)
