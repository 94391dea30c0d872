"""Taking a lease away from its holder, and asking for it.

Laws: only the holder that was shown, which its token says; one that hears it ends before the next one begins; each step
may be repeated, or come late, without harm: what it is about is one token, which nothing else gets.

Theory: the holder is told by its inbox, counts its lease as lost, and releases it as ever, which hands it over. So its
belief ends first where it is alive. A holder that does not let go in time (stopped, cut off, dead) is released on its
behalf, by the script of every give-back: that compares the token and buries it, also of a holder that has let go. A
note says why to a holder that looks later. What it goes on doing until then is what fencing tokens are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast._core.effects import Call, Sleep, Wake, driver
from holdfast._core.keys import LockKeys, lock_keys
from holdfast._core.kinds import LEASED, RWLOCK, Kind
from holdfast._core.overview import Entry, keys_of, look_at
from holdfast._core.rwlock import reader_beneath
from holdfast._core.settings import Settings
from holdfast._core.tokens import mark_of
from holdfast._core.waiting import Acquisition, once_more

#: What became of a holder that was to be broken: it let go by itself; it was released on its behalf; it held no more.
LET_GO, FORCED, GONE = "let go", "forced", "gone"
#: How many holders of one name are seen, and broken, by one call.
HOLDERS_MAX = 100
#: How long a holder without an inbox has, s: it may be about to open one, and then looks for notes.
_UNHEARD_S = 0.25
#: Pauses between looks whether it has let go, from the first to the second, s.
_PAUSE_S, _PAUSE_MAX_S = 0.004, 0.05
#: A holder that looks later than this after its break has lost its lease by its time.
_NOTE_MS = 600_000
#: The ttl that is assumed of the leases of others: it only bounds how long a give-back is tried.
_TTL_MS = 30_000


class _Broken(Acquisition):
    """What was acquired by another client, and is released on its behalf."""

    __slots__ = ("kind",)

    def __init__(self, kind: Kind, keys: LockKeys, token: str, settings: Settings) -> None:
        self.kind = kind
        super().__init__(keys, token, _TTL_MS, settings)


class Held(NamedTuple):
    """One holder of something: of which `kind` it is (as in a listing), its keys, and its token."""

    kind: str
    keys: LockKeys
    token: str

    def turn(self, settings: Settings) -> Acquisition:
        """Return the acquisition that releases this lease."""
        kind = RWLOCK if mark_of(self.token)[:1] in RWLOCK.marks else LEASED[self.kind]
        return _Broken(kind, self.keys, self.token, settings)

    def tell(self, what: str, text: str, settings: Settings) -> Call:
        """The request that tells it, or (with "") looks whether it holds still."""
        lock, _, _, many, upgraded = keys_of(self.kind, self.keys)
        note_ms = _NOTE_MS if what == Wake.BREAK else 0
        keys = (lock, many, upgraded, self.keys.gone, self.keys.note_of(self.token))
        args = (self.token, self.keys.inboxes, what, text, note_ms)
        return Call("tell", keys, args, settings.request_timeout_s)


async def holders(namespace: str | None, name: str, kinds: Sequence[str], settings: Settings) -> list[Entry]:
    """Return the entries of these kinds under that name that are held. Raises `RequestFailed`."""
    seen = await look_at(namespace, [(kind, name) for kind in kinds], HOLDERS_MAX, settings)
    return [each for each in seen if each.held]


def held_by(seen: Entry, namespace: str | None) -> list[Held]:
    """Return the holders of an entry, the most recent lease of each first: an upgrade before the reader beneath it."""
    keys = lock_keys(namespace, seen.name).of(LEASED[seen.kind])
    found = []
    for token, _ in seen.holders:
        beneath = reader_beneath(token)
        found += [Held(seen.kind, keys, each) for each in (token, beneath) if each is not None]
    return found


async def want(held: Held, text: str, settings: Settings) -> int:
    """Ask the holder to let go: 2 it was told, 1 it hears nothing, 0 it holds no more. Raises `RequestFailed`."""
    return int(await once_more(held.tell(Wake.WANT, text, settings)))


async def take_away(all_held: Sequence[Held], text: str, grace_s: float, settings: Settings) -> list[str]:
    """Break these leases: what became of each. They have `grace_s` to let go. Raises `RequestFailed`."""
    became = [GONE] * len(all_held)
    waiting: list[tuple[int, float]] = []
    for at, held in enumerate(all_held):
        told = await once_more(held.tell(Wake.BREAK, text, settings))
        if told:
            waiting.append((at, driver.get().now() + (grace_s if told > 1 else min(grace_s, _UNHEARD_S))))
    pause_s = _PAUSE_S
    while waiting:
        await Sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        for at, until in waiting[:]:
            if await once_more(all_held[at].tell("", "", settings)) and driver.get().now() < until:
                continue
            waiting.remove((at, until))
            # Also where it has let go: a waiter whose claim is over would be granted by its token when it asks again.
            turn = all_held[at].turn(settings)
            turn.stray = True  # requests of that holder may be under way: its token is buried
            became[at] = FORCED if await turn.release() else LET_GO
    return became
