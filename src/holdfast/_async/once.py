"""Values that one client makes and the others wait for: results of jobs that run once, and entries of caches.

Laws: a value that is there is given without waiting; the maker holds the write lock, and looks again before.

Theory: those who come while it is made wait as readers, and get in all at once when the writer has left: the last of a
thousand waits no longer than the first. Where the writer has left nothing behind (it failed), they queue as writers,
one after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from holdfast._api.decorated import check_callable
from holdfast._api.options import check_value
from holdfast._api.outcome import Outcome, Stored, mark_of, packed_result, unpacked_result
from holdfast._async.decorators import awaited
from holdfast._async.lease import Lease
from holdfast._async.lifecycle import Session
from holdfast._async.rwlock import ReadLock, WriteLock
from holdfast._runtime.clock import clock
from holdfast.errors import AcquireTimeout, AlreadyHeld, HoldfastError, OnceConflict

Make: TypeAlias = Callable[[Lease], Awaitable[bytes]]


async def _made(session: Session, value: Stored, make: Make, timeout_s: float | None) -> tuple[bool, bytes]:
    """Return whether this call made the value, and the value."""
    found, is_stale = await session.run(value.look())
    if found is not None and not is_stale:
        return False, found
    until = None if timeout_s is None else clock() + timeout_s
    lock, maker = WriteLock(session, value.name, value.options), None
    try:
        async with lock.acquire(timeout=0) as lease:
            maker = lease.token
            return await _under_lock(session, value, make, lease)
    except (AlreadyHeld, AcquireTimeout) as error:
        if maker is not None:
            raise  # by `make`
        if found is not None:
            return False, found  # another one makes a new one
        holder = error.holder if isinstance(error, AcquireTimeout) else None
        maker = holder.token if holder else ""
    async with ReadLock(session, value.name, value.options).acquire(timeout=_left_s(until)):
        found = await session.run(value.get())
    if found is not None:
        return False, found
    if value.shares:
        await session.run(value.fail_with(maker))
    async with lock.acquire(timeout=_left_s(until)) as lease:
        return await _under_lock(session, value, make, lease)


async def _under_lock(session: Session, value: Stored, make: Make, lease: Lease) -> tuple[bool, bytes]:
    found, is_stale = await session.run(value.look())
    if found is not None and not is_stale:
        return False, found
    try:
        made = await make(lease)
    except Exception as error:
        if value.shares:
            with contextlib.suppress(HoldfastError):  # the next one tries then
                await session.run(value.tell(lease.token, error))
        raise
    await session.run(value.store(made, lease.fencing_token))
    return True, made


def _left_s(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - clock())


async def get_or_set(session: Session, value: Stored, make: Callable[[], Any], timeout_s: float | None) -> bytes:
    """See `Client.get_or_set`."""
    check_callable("make", make)

    async def made(_: Lease) -> bytes:
        return check_value("value", await awaited("make", make, make()))

    return (await _made(session, value, made, timeout_s))[1]


async def once(
    session: Session,
    name: str,
    value: Stored,
    function: Callable[[Lease], Any],
    fingerprint: str | bytes | None,
    timeout_s: float | None,
) -> Outcome:
    """See `Client.once`."""
    check_callable("function", function)
    mark = mark_of(fingerprint)

    async def run(lease: Lease) -> bytes:
        return packed_result(await awaited("function", function, function(lease)), mark)

    new, stored = await _made(session, value, run, timeout_s)
    result, made_for = unpacked_result(stored)
    if mark and made_for != mark:
        raise OnceConflict(name)
    return Outcome(new, result)


async def forget(session: Session, value: Stored, timeout_s: float | None) -> None:
    """See `Client.forget`."""
    async with WriteLock(session, value.name, value.options).acquire(timeout=timeout_s) as lease:
        await session.run(value.remove(lease.fencing_token))
