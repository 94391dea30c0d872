"""Values that one client makes and the others wait for: results of jobs that run once, and entries of caches.

Laws: a value that is there is given without waiting; the maker holds the write lock, and looks again before; a
value is stored by the fencing token of its maker, so that one whose lease has ended does not replace a newer one.

Theory: those who come while it is made wait as readers, and get in all at once when the writer has left: the last of a
thousand waits no longer than the first. Where the writer has left nothing behind (it failed), they queue as writers,
one after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

from holdfast._api.decorated import check_callable
from holdfast._api.options import Options, check_name, check_value
from holdfast._api.outcome import Outcome, mark_of, packed_result, unpacked_result
from holdfast._async.decorators import Held, Skipped, awaited
from holdfast._async.lease import Lease
from holdfast._async.lifecycle import Session
from holdfast._async.optimistic import fenced_set
from holdfast._async.rwlock import ReadLock, WriteLock
from holdfast._core import optimistic
from holdfast._core.effects import Command
from holdfast._core.keys import lock_keys
from holdfast._core.replies import COUNT, DONE
from holdfast._core.waiting import once_more
from holdfast._runtime.clock import clock
from holdfast.errors import ConfigurationError, HoldfastError, MakeFailed, OnceConflict, shown

__all__ = ["forget", "get_or_set", "once"]

#: For how long after its last write the newest fencing token is remembered beside a value, ms.
_REMEMBER_MS = 86_400_000
#: How much is told of a failure, bytes, and how long to those who waited for it, ms.
_SAID_MAX, _TOLD_MS = 400, 60_000

Make: TypeAlias = Callable[[Lease], Awaitable[bytes]]


class _Value(NamedTuple):
    """One value: where it lies, who may make it, how long it is kept, and in which last part of that it is stale.

    `shares`: a failure of the maker is told to those who wait for it.
    """

    session: Session
    name: str
    key: str
    options: Options
    ttl_ms: int | None
    stale_ms: int = 0
    shares: bool = False

    @property
    def failed_key(self) -> str:
        return f"{lock_keys(self.session.namespace, self.name).base}:failed"

    async def found(self) -> bytes | None:
        return await self.session.run(optimistic.get(self.key, self.session.settings.request_timeout_s))

    async def is_stale(self) -> bool:
        """True if it is to be made again, though it is there."""
        if not self.stale_ms:
            return False
        left = Command(("PTTL", self.key), self.session.settings.request_timeout_s, self.key, fits=COUNT)
        left_ms: int = await self.session.run(once_more(left))
        return 0 <= left_ms <= self.stale_ms

    async def made(self, make: Make, timeout_s: float | None) -> tuple[bool, bytes]:
        """Return whether this call made the value, and the value."""
        if (value := await self.found()) is not None and not await self.is_stale():
            return False, value
        until = None if timeout_s is None else clock() + timeout_s
        try:
            return await self._under_lock(make, True, None)
        except Skipped as skipped:
            if value is not None:
                return False, value  # another one makes a new one
            maker = skipped.token
        async with Held(ReadLock(self.session, self.name, self.options), False, _left_s(until)):
            value = await self.found()
        if value is None and self.shares:
            await self._fail_with(maker)
        return (False, value) if value is not None else await self._under_lock(make, False, _left_s(until))

    async def _under_lock(self, make: Make, only_if_free: bool, timeout_s: float | None) -> tuple[bool, bytes]:
        async with Held(WriteLock(self.session, self.name, self.options), only_if_free, timeout_s) as lease:
            if (value := await self.found()) is not None and not await self.is_stale():
                return False, value
            try:
                value = await make(lease)
            except Exception as error:
                if self.shares:
                    await self._tell(lease.token, error)
                raise
            await fenced_set(self.session, self.key, value, lease.fencing_token, self.ttl_ms, _REMEMBER_MS)
            return True, value

    async def _tell(self, token: str, error: Exception) -> None:
        """Leave word of a failure, before those who wait are let in."""
        said = f"{token} {type(error).__name__}: {error}".encode("utf-8", "replace")[:_SAID_MAX]
        timeout_s = self.session.settings.request_timeout_s
        command = Command(("SET", self.failed_key, said, "PX", _TOLD_MS), timeout_s, self.failed_key, fits=DONE)
        with contextlib.suppress(HoldfastError):  # the next one tries then
            await self.session.run(once_more(command))

    async def _fail_with(self, token: str) -> None:
        """Raise what the maker with that token has failed with, if it has."""
        said = await self.session.run(optimistic.get(self.failed_key, self.session.settings.request_timeout_s))
        by, _, error = (said or b"").decode("utf-8", "replace").partition(" ")
        if token and by == token:
            raise MakeFailed(self.name, shown(error, _SAID_MAX))


def _left_s(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - clock())


def _shares(failure: object) -> bool:
    if failure not in ("next", "share"):
        raise ConfigurationError("failure", failure, '"next" (the next one tries) or "share" (all who wait get it)')
    return failure == "share"


async def get_or_set(
    session: Session,
    key: str,
    make: Callable[[], Any],
    ttl_ms: int | None,
    stale_ms: int,
    failure: str,
    timeout_s: float | None,
    options: Options,
) -> bytes:
    """See `Client.get_or_set`."""
    check_callable("make", make)
    if stale_ms and ttl_ms is None:
        raise ConfigurationError("stale", stale_ms / 1000, "None for a value that lives without a limit")
    lives_ms = None if ttl_ms is None else ttl_ms + stale_ms

    async def made(_: Lease) -> bytes:
        return check_value("value", await awaited("make", make, make()))

    lock = f"get_or_set:{check_name(key, 'key')}"
    value = _Value(session, lock, key, options, lives_ms, stale_ms, _shares(failure))
    return (await value.made(made, timeout_s))[1]


async def once(
    session: Session,
    name: str,
    function: Callable[[Lease], Any],
    retain_ms: int,
    fingerprint: str | bytes | None,
    failure: str,
    timeout_s: float | None,
    options: Options,
) -> Outcome:
    """See `Client.once`."""
    check_callable("function", function)
    mark = mark_of(fingerprint)

    async def run(lease: Lease) -> bytes:
        return packed_result(await awaited("function", function, function(lease)), mark)

    own, key = _names(session, name)
    new, value = await _Value(session, own, key, options, retain_ms, 0, _shares(failure)).made(run, timeout_s)
    result, made_for = unpacked_result(value)
    if mark and made_for != mark:
        raise OnceConflict(name)
    return Outcome(new, result)


async def forget(session: Session, name: str, timeout_s: float | None, options: Options) -> None:
    """See `Client.forget`."""
    own, key = _names(session, name)
    async with Held(WriteLock(session, own, options), False, timeout_s) as lease:
        # By the fencing token: a job whose lease has ended may still be about to store its result.
        await fenced_set(session, key, "", lease.fencing_token, -1, _REMEMBER_MS)


def _names(session: Session, name: str) -> tuple[str, str]:
    """Return the name of the lock of a job, and the key of its result."""
    own = f"once:{check_name(name)}"
    return own, f"{lock_keys(session.namespace, own).base}:done"
