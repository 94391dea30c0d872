"""The names that the code of `docs/questions` uses, without exclusion: with these it has to fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from redis import Redis

__all__ = ["AsyncUnlocked", "Unlocked"]


class _Lease:
    """Of nothing."""

    fencing_token = 0

    def handle(self) -> str:
        return ""

    def __enter__(self) -> _Lease:
        return self

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> _Lease:
        return self

    async def __aexit__(self, *_: object) -> None: ...


class _Lock(_Lease):
    def acquire(self, timeout: float) -> _Lease:
        return self

    async def last_fencing_token(self) -> int:
        return 0

    async def run(self, lead: Callable[[Any], Any]) -> Any:
        """Lead, as all others do."""
        return await lead(self)


def _as_it_is(template: str, **options: Any) -> Callable[[Any], Any]:
    return lambda function: function


def _stored(result: Any) -> bytes | None:
    return result.encode() if isinstance(result, str) else result


class _Outcome:
    def __init__(self, result: Any) -> None:
        self.result = _stored(result)


class AsyncUnlocked:
    """For programs with `holdfast.asyncio`."""

    locked = limited = staticmethod(_as_it_is)

    def __init__(self, store: Redis) -> None:
        self._store = store

    def lock(self, name: str, **options: Any) -> _Lock:
        return _Lock()

    election = lock

    async def once(self, name: str, function: Callable[[Any], Any], **options: Any) -> _Outcome:
        return _Outcome(await function(_Lease()))


class Unlocked:
    """For programs with threads. Its cache is what Django's `cache_page` does."""

    locked = limited = staticmethod(_as_it_is)

    def __init__(self, store: Redis) -> None:
        self._store = store

    def lock(self, name: str, **options: Any) -> _Lock:
        return _Lock()

    @contextlib.contextmanager
    def adopt(self, handle: str) -> Iterator[_Lease]:
        yield _Lease()

    def once(self, name: str, function: Callable[[Any], Any], **options: Any) -> _Outcome:
        return _Outcome(function(_Lease()))

    def forget(self, name: str) -> None: ...

    def get_or_set(self, key: str, make: Callable[[], str], expire: float, **options: Any) -> Any:
        page = self._store.get(key)
        if page is None:
            page = make()
            self._store.set(key, page, px=round(1_000 * expire))
        return page
