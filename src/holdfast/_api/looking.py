"""Looks at a server, for people: what is held there, by whom, and what clients say of themselves.

The same for both APIs. Protocols, which run in the engine: to read what the clients of a long list say of themselves is
left to the one who asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast._api.client_info import client_id_of, lease_note_key
from holdfast._api.holder import Described, Holder, Told, holder_of
from holdfast._api.session import SessionBase
from holdfast._core.describe import PATIENCE_S, look_up
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import client_key
from holdfast._core.kinds import ALONE, LISTED, LISTED_AS
from holdfast._core.overview import NAMES_MAX, Entry, Walk, counts_of, look_at
from holdfast._core.tokens import has_note
from holdfast._core.waiting import Seen
from holdfast.errors import ConfigurationError, ServerError

#: How many holders and waiters of a lock are named.
NAMED_MAX = 16
#: For how many looks grants are counted after the last that was seen; and of how many locks that is remembered.
_LOOKS_COUNTED, _LOOKED_MAX = 60, 100_000
#: A wait that was in vain takes no longer than this to say for whom, s each request.
_LAST_PATIENCE_S = 0.25


def namespace_of(session: SessionBase) -> str:
    if session.namespace is None:
        raise ConfigurationError("namespace", None, "a client with a namespace: without one, any key may be a lock")
    return session.namespace


async def page(
    session: SessionBase, walk: Walk, counts: bool
) -> tuple[list[Entry], Described, dict[tuple[str, str], int]]:
    """The next ones of a listing, who they are, and (with `counts`) how often granted."""
    found = await walk.page()
    return found, await described(session, found), await _counts(session, found) if counts else {}


def listed_as(seen: Entry) -> tuple[str, str]:
    return LISTED_AS[seen.kind], seen.name


async def _counts(session: SessionBase, found: Iterable[Entry]) -> dict[tuple[str, str], int]:
    """How often these were granted since that is counted: those that were seen to change. Nothing without the right."""
    if len(session.looks) > _LOOKED_MAX:
        session.looks.clear()
    busy = []
    for seen in found:
        which = listed_as(seen)
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
            counts.update(zip(some, await counts_of(namespace_of(session), some, session.settings), strict=True))
    except RequestFailed as failure:
        if not isinstance(failure.public(), ServerError):
            raise
    return counts


async def look(session: SessionBase, name: str, most: int = NAMED_MAX) -> tuple[list[Entry], Described]:
    """Return what is held or waited for under that name, one of each of `LISTED`, and who they are."""
    seen = await look_at(session.namespace, [(kind, name) for kind in LISTED], most, session.settings)
    return seen, await described(session, seen)


async def described(session: SessionBase, found: Sequence[Entry]) -> Described:
    """Return what clients say of themselves and of their leases; known answers are not asked for again."""
    waiters = {token: await _told(session, token, noted=False) for seen in found for token, _ in seen.waiters}
    return waiters | {token: await _told(session, token) for seen in found for token, _ in seen.holders}


def known(session: SessionBase, token: str) -> Told:
    """Return the same of one token as far as it is known here."""
    return session.told_by.get(client_id_of(token) or ""), session.told_by.get(token)


async def _told(session: SessionBase, token: str, patience_s: float = PATIENCE_S, noted: bool = True) -> Told:
    client, note = known(session, token)
    client_id = client_id_of(token)
    if client is None and client_id is not None:
        client = await look_up(client_key(session.namespace, client_id), patience_s)
        session.hear(client_id, client)
    if note is None and noted and has_note(token):
        note = await look_up(lease_note_key(session.namespace, token), patience_s)
        session.hear(token, note)
    return client, note


async def behind(
    session: SessionBase, token: str, remaining_ms: int, fence: int, patience_s: float = PATIENCE_S
) -> Holder:
    """Return who holds by that token. Takes a request the first time that its client is asked about, or its note."""
    return holder_of(token, remaining_ms, fence, *await _told(session, token, patience_s))


async def last_behind(session: SessionBase, kind: str, name: str, token: str) -> Holder:
    """The same for `AcquireTimeout`, with what is left of its time, best effort."""
    return await _behind_in(session, token, await _look_soon(session, kind, name))


async def now(lock: Any, seen: Seen) -> tuple[Holder | None, int]:
    """Return who holds what is waited for, and the place in its queue, as of now, or of the last request."""
    session, token, place = lock._session, seen.holder, seen.place
    if session.quorum is not None:
        held = await lock._how.inspect()
        return await behind(session, held.holder, held.remaining_ms, held.fence) if held.holder else None, place
    entry = await _look_soon(session, lock._kind, lock._name)
    if entry is not None and entry.holders:
        waiting, holding = [each for each, _ in entry.waiters], [each for each, _ in entry.holders]
        place = waiting.index(seen.token) if seen.token in waiting else place
        token = token if token in holding else holding[0]
    return None if token is None else await _behind_in(session, token, entry), place


async def _look_soon(session: SessionBase, kind: str, name: str) -> Entry | None:
    """Return what is stored under that name; None where that is not known at once."""
    if session.quorum is not None:
        return None
    names = [(kind if kind in LISTED else "lock", name)]
    settings = session.settings._replace(request_timeout_s=_LAST_PATIENCE_S)
    try:
        return (await look_at(session.namespace, names, NAMED_MAX, settings))[0]
    except RequestFailed:
        return None


async def _behind_in(session: SessionBase, token: str, seen: Entry | None) -> Holder:
    remaining_ms, fence = -1, 0
    if seen is not None and token in (held := dict(seen.holders)):
        remaining_ms, fence = held[token], seen.fence if seen.kind in ALONE else 0
    return await behind(session, token, remaining_ms, fence, _LAST_PATIENCE_S)
