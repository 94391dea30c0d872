"""Values that one client makes and the others wait for: results of jobs that run once, and entries of caches.

Laws: a value that is there is given without waiting; the maker holds the write lock, and looks again before; a
value is stored by the fencing token of its maker, so that one whose lease has ended does not replace a newer one.

Theory: those who come while it is made wait as readers, and get in all at once when the writer has left: the last of a
thousand waits no longer than the first. Where the writer has left nothing behind (it failed), they queue as writers,
one after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast._api.decorated import check_callable
from holdfast._api.options import Options, check_name, check_value
from holdfast._api.outcome import Outcome, packed_result, unpacked_result
from holdfast._async.callbacks import awaited
from holdfast._async.decorators import Held, Skipped
from holdfast._async.lease import Lease
from holdfast._async.lifecycle import Session
from holdfast._async.optimistic import fenced_set
from holdfast._async.rwlock import ReadLock, WriteLock
from holdfast._core import optimistic
from holdfast._core.keys import lock_keys
from holdfast._runtime.clock import clock

__all__ = ["get_or_set", "once"]

#: For how long after its last write the newest fencing token is remembered beside a value, ms.
_REMEMBER_MS = 86_400_000


class _Value:
    """One value: where it lies, who may make it, and how long it is kept."""

    def __init__(self, session: Session, name: str, key: str, options: Options, ttl_ms: int | None) -> None:
        self._session = session
        self._name = name
        self._key = key
        self._options = options
        self._ttl_ms = ttl_ms

    async def found(self) -> bytes | None:
        return await self._session.run(optimistic.get(self._key, self._session.settings.request_timeout_s))

    # sync: def made(self, make: Callable[[Lease], bytes], timeout_s: float | None) -> tuple[bool, bytes]:
    async def made(self, make: Callable[[Lease], Awaitable[bytes]], timeout_s: float | None) -> tuple[bool, bytes]:
        """Return whether this call made the value, and the value."""
        if (value := await self.found()) is not None:
            return False, value
        until = None if timeout_s is None else clock() + timeout_s
        try:
            return await self._make(make, True, None)
        except Skipped:
            pass  # it is being made
        async with Held(ReadLock(self._session, self._name, self._options), False, _left_s(until)):
            value = await self.found()
        return (False, value) if value is not None else await self._make(make, False, _left_s(until))

    async def _make(
        self,
        # sync: make: Callable[[Lease], bytes],
        make: Callable[[Lease], Awaitable[bytes]],
        only_if_free: bool,
        timeout_s: float | None,
    ) -> tuple[bool, bytes]:
        async with Held(WriteLock(self._session, self._name, self._options), only_if_free, timeout_s) as lease:
            if (value := await self.found()) is not None:
                return False, value
            value = await make(lease)
            await fenced_set(self._session, self._key, value, lease.fencing_token, self._ttl_ms, _REMEMBER_MS)
            return True, value


def _left_s(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - clock())


async def get_or_set(
    session: Session, key: str, make: Callable[[], Any], ttl_ms: int | None, timeout_s: float | None, options: Options
) -> bytes:
    """See `Client.get_or_set`."""
    check_callable("make", make)

    async def made(_: Lease) -> bytes:
        return check_value("value", await awaited("make", make, make()))

    lock = f"get_or_set:{check_name(key, 'key')}"
    return (await _Value(session, lock, key, options, ttl_ms).made(made, timeout_s))[1]


async def once(
    session: Session,
    name: str,
    function: Callable[[Lease], Any],
    retain_ms: int,
    timeout_s: float | None,
    options: Options,
) -> Outcome:
    """See `Client.once`."""
    check_callable("function", function)

    async def run(lease: Lease) -> bytes:
        return packed_result(await awaited("function", function, function(lease)))

    own = f"once:{check_name(name)}"
    key = f"{lock_keys(session.namespace, own).base}:done"
    new, value = await _Value(session, own, key, options, retain_ms).made(run, timeout_s)
    return Outcome(new, unpacked_result(value))
