"""Drop-ins for the locks of other libraries, on this library's protocol.

`holdfast.compat.redis`: redis-py's Lock; `holdfast.compat.redis.asyncio`: that of its asyncio clients;
`holdfast.compat.redis_lock`: python-redis-lock, with its cache for Django.
"""

__all__: list[str] = []
