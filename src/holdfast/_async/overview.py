"""Listing the locks of a namespace, watching one, and telling an acquire what it waits for."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from holdfast._api.changes import Change, changes
from holdfast._api.deadlocks import Deadlock, deadlock_of
from holdfast._api.decorated import check_callable, check_result
from holdfast._api.holder import Holder, Waiting, holder_of
from holdfast._api.looking import NAMED_MAX, known, last_behind, listed_as, look, namespace_of, now, page
from holdfast._api.overview import Listed, listed
from holdfast._async.lifecycle import Session
from holdfast._core.describe import look_up
from holdfast._core.keys import lock_keys
from holdfast._core.kinds import LEASED
from holdfast._core.overview import Walk, look_at_signals
from holdfast._core.waiting import Seen
from holdfast._runtime.clock import clock
from holdfast.errors import HoldfastError, shown

#: How many holders and waiters of a lock are named that is watched.
_WATCHED_MAX = 256


async def list_locks(session: Session, pattern: str, counts: bool = False) -> AsyncIterator[Listed]:
    """Each lock, semaphore and election of the namespace whose name fits.

    `counts`: see to it that grants are counted of those that change.
    """
    walk = Walk(namespace_of(session), pattern, NAMED_MAX, not session.moves, session.masters, session.settings)
    while not walk.over:
        found, told, grants = await session.run(page(session, walk, counts))
        for seen in found:
            yield listed(seen, told, grants.get(listed_as(seen)))


async def find_deadlocks(session: Session) -> tuple[Deadlock, ...]:
    namespace_of(session)
    return tuple(map(deadlock_of, await session.run(session.detector().deadlocks())))


async def watch_lock(session: Session, name: str, every_s: float) -> AsyncIterator[Change]:
    """Watch the lock, semaphore and election of that name, beginning with their current state; never ends by itself."""
    namespace_of(session)
    before: dict[int, Listed] = {}
    pause = session.driver.home.flag()
    while True:
        found, told = await session.run(look(session, name, _WATCHED_MAX))
        for number, seen in enumerate(found):
            after = listed(seen, told)
            for change in changes(before.get(number), after):
                yield await explain(session, change)
            before[number] = after
        await pause.wait_s(every_s)


async def everything(session: Session, name: str) -> tuple[list[Listed], dict[str, dict[str, Any]]]:
    """Return what is held or waited for under that name, one of each of `LISTED`; and all else, by its kind."""
    found, told = await session.run(look(session, name))
    signals = await session.run(look_at_signals(session.namespace, name, session.settings.request_timeout_s))
    return [listed(seen, told) for seen in found], signals


async def explain(session: Session, change: Change) -> Change:
    """See `Client.explain`."""
    if change.what not in ("released", "expired") or change.who is None:
        return change
    keys = lock_keys(namespace_of(session), change.name).of(LEASED[change.kind])
    note = await session.run(look_up(keys.note_of(change.who.token)))
    reason = None if note is None else shown(note.decode("utf-8", "replace"), 400)
    return change if reason is None else replace(change, what="broken", reason=reason)


async def last_holder(session: Session, kind: str, name: str, token: str, waited: bool) -> Holder:
    """Return the holder for `AcquireTimeout`, best effort; unless `waited`, without a request."""
    if waited:
        try:
            return await session.run(last_behind(session, kind, name, token))
        except HoldfastError:
            pass  # what is known of it says enough
    return holder_of(token, -1, 0, *known(session, token))


def teller(lock: Any, on_wait: Callable[[Waiting], object]) -> Callable[[Seen], Any]:
    """Return a function that calls `on_wait` with what is known of a wait for that lock."""
    check_callable("on_wait", on_wait)
    began_at = clock()

    async def tell(seen: Seen) -> None:
        try:
            holder, place = await lock._session.run(now(lock, seen))
        except HoldfastError:
            holder, place = None, seen.place  # it may be why it waits
        told = Waiting(lock._label, lock._name, clock() - began_at, place + 1 if place >= 0 else None, holder)
        result = on_wait(told)
        # sync-drop
        if inspect.isawaitable(result):
            result = await result
        check_result(on_wait, result, "asyncio", "on_wait", "it is called while a lock is waited for")

    return tell
