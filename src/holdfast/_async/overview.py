"""Listing the locks of a namespace, watching one, and telling an acquire what it waits for."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

from holdfast._api.changes import Change, changes
from holdfast._api.client_info import client_id_of, client_key, lease_note_key
from holdfast._api.deadlocks import Deadlock, deadlock_of
from holdfast._api.decorated import check_callable, check_result
from holdfast._api.holder import Described, Holder, Told, Waiting, holder_of
from holdfast._api.overview import Listed, listed
from holdfast._async.lifecycle import Session
from holdfast._core.describe import PATIENCE_S, look_up
from holdfast._core.keys import lock_keys
from holdfast._core.kinds import ALONE, LEASED, LISTED, LISTED_AS
from holdfast._core.overview import NAMES_MAX, Entry, Walk, counts_of, look_at
from holdfast._core.signals import look_at_signals
from holdfast._core.telling import Seen
from holdfast._core.tokens import has_note
from holdfast.errors import ConfigurationError, HoldfastError, ServerError, shown

__all__ = [
    "described",
    "everything",
    "explain",
    "find_deadlocks",
    "holder_by",
    "last_holder",
    "list_locks",
    "teller",
    "watch_lock",
]

#: How many holders and waiters of a lock are named: in a list, and of one that is watched.
_NAMED_MAX = 16
#: For how many looks grants are counted after the last that was seen; and of how many locks that is remembered.
_LOOKS_COUNTED, _LOOKED_MAX = 60, 100_000
_WATCHED_MAX = 256
#: A wait that was in vain takes no longer than this to say for whom, s each request.
_LAST_PATIENCE_S = 0.25


async def list_locks(session: Session, pattern: str, counts: bool = False) -> AsyncIterator[Listed]:
    """Each lock, semaphore and election of the namespace whose name fits.

    `counts`: see to it that grants are counted of those that change.
    """
    namespace = _namespace(session)
    node = 0
    while True:
        walk = Walk(namespace, pattern, _NAMED_MAX, not session.moves, session.settings)
        more = True
        while more:
            page, more = await session.run(walk.page(node))
            grants = await _counts(session, namespace, page) if counts else {}
            for seen in page:
                yield listed(seen, await described(session, seen), grants.get(_listed_as(seen)))
        node += 1
        if node >= session.masters():
            return


def _listed_as(seen: Entry) -> tuple[str, str]:
    return LISTED_AS[seen.kind], seen.name


async def _counts(session: Session, namespace: str, page: Iterable[Entry]) -> dict[tuple[str, str], int]:
    """How often these were granted since that is counted: those that were seen to change. Nothing without the right."""
    if len(session.looks) > _LOOKED_MAX:
        session.looks.clear()
    busy = []
    for seen in page:
        which = _listed_as(seen)
        before, left = session.looks.get(which, (seen.fence, 0))
        left = _LOOKS_COUNTED if before != seen.fence else left - 1
        session.looks[which] = (seen.fence, left)
        if left > 0:
            busy.append(which)
    counts: dict[tuple[str, str], int] = {}
    most = 1 if session.moves else NAMES_MAX
    try:
        for at in range(0, len(busy), most):
            some = busy[at : at + most]
            counts.update(zip(some, await session.run(counts_of(namespace, some, session.settings)), strict=True))
    except ServerError:
        pass
    return counts


async def find_deadlocks(session: Session) -> tuple[Deadlock, ...]:
    _namespace(session)
    return tuple(map(deadlock_of, await session.run(session.detector().deadlocks())))


async def watch_lock(session: Session, name: str, every_s: float) -> AsyncIterator[Change]:
    """Watch the lock, semaphore and election of that name, beginning with their current state; never ends by itself."""
    namespace = _namespace(session)
    names = [(kind, name) for kind in LISTED]
    before: dict[int, Listed] = {}
    pause = session.driver.home.flag()
    while True:
        for number, seen in enumerate(await session.run(look_at(namespace, names, _WATCHED_MAX, session.settings))):
            after = listed(seen, await described(session, seen))
            for change in changes(before.get(number), after):
                yield await explain(session, change)
            before[number] = after
        await pause.wait_s(every_s)


async def everything(session: Session, name: str) -> tuple[list[Listed], dict[str, dict[str, Any]]]:
    """Return what is held or waited for under that name, one of each of `LISTED`; and all else, by its kind."""
    names = [(kind, name) for kind in LISTED]
    seen = await session.run(look_at(session.namespace, names, _NAMED_MAX, session.settings))
    found = [listed(each, await described(session, each)) for each in seen]
    timeout_s = session.settings.request_timeout_s
    return found, await session.run(look_at_signals(session.namespace, name, timeout_s))


async def explain(session: Session, change: Change) -> Change:
    """See `Client.explain`."""
    if change.what not in ("released", "expired") or change.who is None:
        return change
    keys = lock_keys(_namespace(session), change.name).of(LEASED[change.kind])
    note = await session.run(look_up(keys.note_of(change.who.token)))
    reason = None if note is None else shown(note.decode("utf-8", "replace"), 400)
    return change if reason is None else replace(change, what="broken", reason=reason)


def _namespace(session: Session) -> str:
    if session.namespace is None:
        raise ConfigurationError("namespace", None, "a client with a namespace: without one, any key may be a lock")
    return session.namespace


async def _look(session: Session, kind: str, name: str) -> Entry | None:
    """Return what is stored under that name; None where that is not known at once."""
    if session.quorum is not None:
        return None
    kind = kind if kind in LISTED else "lock"
    settings = session.settings._replace(request_timeout_s=_LAST_PATIENCE_S)
    try:
        return (await session.run(look_at(session.namespace, [(kind, name)], _NAMED_MAX, settings)))[0]
    except HoldfastError:
        return None


async def last_holder(session: Session, kind: str, name: str, token: str, waited: bool) -> Holder:
    """Return the holder for `AcquireTimeout`, best effort; unless `waited`, without a request."""
    if not waited:
        return await holder_by(session, token, -1, 0, 0.0)
    return await _holder_in(session, token, await _look(session, kind, name))


async def _holder_in(session: Session, token: str, seen: Entry | None) -> Holder:
    """Return the holder behind that token, as it was seen."""
    remaining_ms, fence = -1, 0
    if seen is not None and token in (held := dict(seen.holders)):
        remaining_ms, fence = held[token], seen.fence if seen.kind in ALONE else 0
    return await holder_by(session, token, remaining_ms, fence, _LAST_PATIENCE_S)


async def holder_by(
    session: Session, token: str, remaining_ms: int, fence: int, patience_s: float = PATIENCE_S
) -> Holder:
    """The holder behind that token. Takes a request the first time that its client is asked about, or its note.

    `patience_s`: for each; 0: as far as they are known here.
    """
    try:
        told = await _told_by(session, token, patience_s)
    except HoldfastError:
        told = None, None  # what is known of it says enough
    return holder_of(token, remaining_ms, fence, *told)


async def described(session: Session, seen: Entry) -> Described:
    """Return what clients say of themselves and of their leases; known answers are not asked for again."""
    waiters = {token: await _told_by(session, token, noted=False) for token, _ in seen.waiters}
    return waiters | {token: await _told_by(session, token) for token, _ in seen.holders}


async def _told_by(session: Session, token: str, patience_s: float = PATIENCE_S, noted: bool = True) -> Told:
    client = note = None
    if (client_id := client_id_of(token)) is not None:
        client = await _known(session, client_id, client_key(session.namespace, client_id), patience_s)
    if noted and has_note(token):
        note = await _known(session, token, lease_note_key(session.namespace, token), patience_s)
    return client, note


async def _known(session: Session, whose: str, key: str, patience_s: float) -> bytes | None:
    told = session.told_by.get(whose)
    if told is None and patience_s:
        told = await session.run(look_up(key, patience_s))
        session.hear(whose, told)
    return told


def teller(lock: Any, on_wait: Callable[[Waiting], object]) -> Callable[[Seen], Any]:
    """Return a function that calls `on_wait` with what is known of a wait for that lock."""
    check_callable("on_wait", on_wait)

    async def tell(seen: Seen) -> None:
        holder, place = await _now(lock, seen)
        told = Waiting(lock._label, lock._name, seen.waited_s, place + 1 if place >= 0 else None, holder)
        result = on_wait(told)
        # sync-drop
        if inspect.isawaitable(result):
            result = await result
        check_result(on_wait, result, "asyncio", "on_wait", "it is called while a lock is waited for")

    return tell


async def _now(lock: Any, seen: Seen) -> tuple[Holder | None, int]:
    """Return the holder and the place in the queue, as of now, or of the last request."""
    session, token, place = lock._session, seen.holder, seen.place
    try:
        if session.quorum is not None:
            return await lock.holder(), place
        now = await _look(session, lock._kind, lock._name)
        if now is not None and now.holders:
            waiting, holding = [each for each, _ in now.waiters], [each for each, _ in now.holders]
            place = waiting.index(seen.token) if seen.token in waiting else place
            token = token if token in holding else holding[0]
        return (None if token is None else await _holder_in(session, token, now)), place
    except HoldfastError:
        return None, place  # it may be why it waits
