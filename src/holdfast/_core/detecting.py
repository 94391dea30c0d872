"""Finding deadlocks on the server, and ending one by giving up.

Laws: as in `deadlocks.py`. One client at a time decides, and its wait is over on the server before the next one does:
so of one circle one party gives up, however many look at the same time, and whatever their clocks say.

Theory: who waits for what is in the queues: SCAN finds them, and a client's waiters share what one such reading has
found. Where that shows a circle through its own wait, the waiter takes the *claim*, a lock of the namespace, and
reads again the locks that matter. What was there both times is real (`deadlocks.py`). Then it leaves its queue, lets
go of the claim, and raises. A wake-up ends a look: the waiter is granted what it waits for, perhaps.

A waiter that looks leaves a note for others: where in the code it waits, and what it holds by tokens that do not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast._core.deadlocks import Edges, Party, Step, circle_of, circles, common, party_of, stuck
from holdfast._core.describe import Witness, look_up, note_key, note_parts
from holdfast._core.effects import AwaitWake, Call, Command, Reply, Sleep, Spawn, Wake, driver
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import LockKeys, client_key, inbox_prefix, lock_keys
from holdfast._core.kinds import LEASED, LISTED_AS
from holdfast._core.mutex import LockAcquisition
from holdfast._core.overview import Entry, Walk, look_at, waited_s
from holdfast._core.replies import text_of
from holdfast._core.settings import Settings
from holdfast._core.tokens import client_of
from holdfast._core.validity import deadline
from holdfast._core.waiting import Acquisition, Busy, once_more, wait_for

#: How many holders and waiters of a lock one call names; and of how many waiters more is asked for, page by page.
_NAMED_MAX, _WAITERS_MAX = 256, 10_000
#: Between the two readings, s: who gave up just before is out of its queue by then.
_CONFIRM_S = 0.2
#: A client reads for this part of the time at most.
_READ_PART = 0.1
#: A reading that has taken longer than this has failed, s: another thread may begin one.
_READ_MAX_S = 30.0
#: For this long it is looked, between two requests of a reading, whether a wake-up has come, s.
_PEEK_S = 0.001
#: For how long the claim keeps others from deciding when its client dies; and when they try again, s.
_CLAIM_MS, _CLAIMED_S = 10_000, 0.25
#: Notes that are asked for, to learn by whom what is handed on inside of a client is held.
_NOTES_MAX = 64


class Found(NamedTuple):
    """A deadlock, and by client ids and tokens what these say of themselves."""

    circle: tuple[Step, ...]
    told: dict[str, bytes | None]
    notes: dict[str, bytes | None]


class _Woken(Exception):
    """The look is over: a wake-up has come, or the caller's time is over."""

    def __init__(self, wake: Wake | None) -> None:
        self.wake = wake


class _Waiter(NamedTuple):
    """Who looks, and for how long that may go on."""

    token: str
    until: float | None

    async def pause(self, seconds: float) -> None:
        """Let that time pass. Raises `_Woken`."""
        wake = await AwaitWake(self.token, seconds)
        if wake is not None or (self.until is not None and driver.get().now() >= self.until):
            raise _Woken(wake)


class Detector:
    """Looks for deadlocks, for all waiters of one client. `together`: names of one call need not share a slot."""

    def __init__(self, namespace: str, together: bool, settings: Settings, masters: Callable[[], int]) -> None:
        self.namespace = namespace
        self.settings = settings
        self._together = together
        self._masters = masters
        #: The last reading for waiters: what was found, and when the next one may begin.
        self._seen: Edges = {}
        self._next_at = 0.0

    async def deadlocks(self) -> list[Found]:
        """Return the deadlocks that two readings confirm. Raises `RequestFailed`."""
        first = await self._read(None)
        if not circles(first):
            return []
        await Sleep(_CONFIRM_S)
        return [await self.explained(circle) for circle in circles(await self.again(first))]

    async def seen(self, waiter: _Waiter) -> Edges:
        """Return what was read last, or read now. Raises `_Woken`."""
        began_at = driver.get().now()
        if began_at >= self._next_at:
            self._next_at, next_at = began_at + _READ_MAX_S, 0.0
            try:
                self._seen = await self._read(waiter)
                now = driver.get().now()
                next_at = now + (now - began_at) / _READ_PART
            finally:
                self._next_at = next_at
        return self._seen

    async def explained(self, circle: tuple[Step, ...]) -> Found:
        """The same with what is known of its parties; what cannot be learned is left out."""
        clients = {client_of(step.token) for step in circle}
        told = {client: await look_up(client_key(self.namespace, client)) for client in clients}
        return Found(circle, told, {step.token: await self._note_of(step.token) for step in circle})

    async def _note_of(self, token: str) -> bytes | None:
        return await look_up(note_key(self.namespace, token))

    async def _read(self, waiter: _Waiter | None) -> Edges:
        """Return who is stuck, by all that is waited for."""
        entries: list[Entry] = []
        walk = Walk(self.namespace, "*", _NAMED_MAX, self._together, self._masters, self.settings, waited=True)
        while not walk.over:
            entries += [await self._whole(each) for each in await walk.page() if each.queued]
            if waiter is not None:
                await waiter.pause(_PEEK_S)
        return stuck(entries, await self._known(entries))

    async def again(self, first: Edges) -> Edges:
        """Read what is waited for there again; return what has stayed the same."""
        entries = [edge.entry for its in first.values() for edge in its]
        seen = []
        for before in {(entry.kind, entry.name): entry for entry in entries}.values():
            (now,) = await look_at(self.namespace, [(LISTED_AS[before.kind], before.name)], _NAMED_MAX, self.settings)
            same = common(before, await self._whole(now))
            there = await self._there(same)
            seen.append(same._replace(waiters=tuple(each for each in same.waiters if client_of(each[0]) in there)))
        return stuck(seen, await self._known(seen))

    async def _whole(self, entry: Entry) -> Entry:
        """The same with all waiters of a long queue."""
        waiters = list(entry.waiters)
        queue = self._keys_of(entry).queue
        while len(waiters) < min(entry.queued, _WAITERS_MAX):
            first = len(waiters)
            command = ("ZRANGE", queue, first, first + _NAMED_MAX - 1, "WITHSCORES")
            found: Reply = await once_more(Command(command, self.settings.request_timeout_s, key=queue))
            if type(found) is not list or not found:
                break
            if type(found[0]) is list:  # RESP3: pairs, and scores that are numbers
                found = [part for token, score in found for part in (token, b"%.0f" % score)]
            for token, score in zip(found[::2], found[1::2], strict=False):
                waiters.append((text_of(token), waited_s(entry.at_us, score)))
        return entry._replace(waiters=tuple(waiters))

    async def _there(self, entry: Entry) -> set[str]:
        """Return the clients that wait there and are still there: the server can tell them something, or they ask."""
        clients = sorted({client_of(token) for token, _ in entry.waiters if party_of(token, {}, False)})
        keys, inboxes = (self._keys_of(entry).gone,), inbox_prefix(self.namespace)
        there: set[str] = set()
        for at in range(0, len(clients), _NAMED_MAX):
            some = clients[at : at + _NAMED_MAX]
            found = await once_more(Call("there", keys, (inboxes, *some), self.settings.request_timeout_s))
            there |= {client for client, is_there in zip(some, found, strict=True) if is_there}
        return there

    def _keys_of(self, entry: Entry) -> LockKeys:
        return lock_keys(self.namespace, entry.name).of(LEASED[entry.kind])

    async def _known(self, entries: Sequence[Entry]) -> dict[str, Party]:
        """Return the parties behind tokens that do not tell, as far as they wait and have left a note."""
        holders = [token for entry in entries for token, _ in entry.holders]
        unclear = {client_of(token) for token in holders if party_of(token, {}, True) is None}
        waiting = [(token, party_of(token, {}, False)) for entry in entries for token, _ in entry.waiters]
        asked = [(token, party) for token, party in waiting if party is not None and party[0] in unclear]
        known: dict[str, Party] = {}
        for token, party in asked[:_NOTES_MAX]:
            _, held, _ = note_parts(await self._note_of(token))
            known.update(dict.fromkeys(held, party))
        return known


class Check(NamedTuple):
    """What one waiter does about deadlocks: it looks every `every_s` while it waits.

    `claim`: makes the token of a claim. `error`: what is raised.
    """

    detector: Detector
    witness: Witness
    every_s: float
    claim: Callable[[], str]
    error: Callable[[Found], Exception]

    async def look(
        self, acquisition: Acquisition, timeout_s: float | None, until: float | None
    ) -> tuple[Wake | None, float]:
        """Raise when this wait is part of a deadlock and it is ours to end it; else what has woken it, and for how long
        not to look again, s.
        """
        pause_s = self.every_s
        try:
            if not await self._look(acquisition, timeout_s, _Waiter(acquisition.token, until)):
                pause_s = min(pause_s, _CLAIMED_S * (0.5 + driver.get().random()))
        except _Woken as woken:
            return woken.wake, pause_s
        except RequestFailed as failure:
            if not failure.transient and failure.kind not in ("broken", "silent"):
                raise
        return None, pause_s

    async def _look(self, acquisition: Acquisition, timeout_s: float | None, waiter: _Waiter) -> bool:
        """Look for a deadlock, and raise if there is one; False if that could not be decided."""
        detector, token = self.detector, acquisition.token
        await self.witness.leave(token, timeout_s, self.every_s, self.witness.held(token))
        first = await detector.seen(waiter)
        if not circle_of(token, first):
            return True
        keys = lock_keys(detector.namespace, "deadlock").part("claim")
        claim = LockAcquisition(keys, self.claim(), _CLAIM_MS, detector.settings)
        free = decided = False
        circle: tuple[Step, ...] = ()
        try:
            got = await wait_for(claim, 0.0)
            if isinstance(got, Busy):
                free = True
                return False
            await waiter.pause(_CONFIRM_S)
            circle = circle_of(token, await detector.again(first))
            if not circle:
                return True
            if driver.get().now() >= deadline(got.sent_at, _CLAIM_MS):
                return False
            # From here on it is over, whatever comes of the request: unanswered, it may be carried out yet, and the
            # claim is left to its ttl for that.
            decided = True
            settings = acquisition.settings
            await acquisition.undo(settings.tombstone_ms, settings.request_timeout_s)
            decided = False
        except RequestFailed:
            if not decided:
                raise
        finally:
            if not (free or decided):
                await Spawn(claim.give_back())
        raise self.error(await detector.explained(circle))
