"""Random calls of every script that ships. A new script needs an entry in `GENERATORS`: a test says so if it has none.

Few names, few tokens and few values, so that calls meet. Tokens belong to three clients, of which the third is
not subscribed anywhere: its process has gone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["CLIENTS", "GENERATORS", "RENEWALS", "World", "inbox"]

CLIENTS = tuple(f"{number:024x}" for number in (1, 2, 3))
FENCE_MS = 86_400_000
#: A fencing token that no server's time reaches.
HIGH_FENCE = 5_000_000_000_000_000

#: What renews one lease.
RENEWALS = ("renew", "multi_renew", "rw_renew", "sem_renew")

Drawn: TypeAlias = tuple[Sequence[str], Sequence[str | int]]


def inbox(prefix: str, client: str) -> str:
    """The channel of a client."""
    return f"{prefix}:inbox:{client}"


@dataclass
class World:
    """What the calls of one round have in common."""

    rng: random.Random
    prefix: str
    calls: int = 0

    def base(self) -> str:
        return f"{self.prefix}:{{{self.rng.choice('ab')}}}"

    def keys(self, *more: str) -> list[str]:
        base = self.base()
        return [base, *(f"{base}:{name}" for name in ("fence", "queue", "gone", *more))]

    def token(self, *owners: str) -> str:
        owner = self.rng.choice(owners or ("1", "1", "w.1"))
        mark = "" if owners else self.rng.choice(("", "", "+"))
        return f"{self.rng.choice(CLIENTS)}:{owner}:{self.rng.randrange(1, 4)}{mark}"

    def crashing(self) -> str:
        """One of a lease with `crash_release`, or not."""
        return self.token("1") + self.rng.choice(("", "!1000", "!1000"))

    def reader(self) -> str:
        return self.token("1", "r.1", "r.1", "r.1", "w.1", "u1.1", "u1.1")

    def weighted(self) -> str:
        return self.token("1", "1.1", "2.1", "3.1", "9.1")

    def ttl(self) -> int:
        """Far from each other, and a little longer every time, so that it is the same on both sides what ends first."""
        self.calls += 1
        return self.rng.choice((100_000, 200_000, 400_000)) + 20 * self.calls

    def claim(self) -> int:
        self.calls += 1
        return self.rng.choice((30_000, 60_000)) + 20 * self.calls

    def tombstone(self) -> int:
        return self.rng.choice((0, 0, 90_000))

    def order(self) -> tuple[int, int]:
        """Extensions so far, and what it does: -1 renews, 0 extends, more outdates."""
        return self.rng.randrange(4), self.rng.choice((-1, -1, 0, 90_000))

    def arrival(self) -> int:
        return self.rng.choice((0, 0, 0, 1_000_000, 2_000_000, 3_000_000))

    def block(self) -> tuple[int, ...]:
        """The end of a block of fencing tokens, and the last one used."""
        used = HIGH_FENCE + 1_024 * self.rng.randrange(4)
        return self.rng.choice(((), (used + self.rng.choice((1_023, 1_024)), used)))

    def one_of(self, *values: str | int) -> str | int:
        return self.rng.choice(values)

    @property
    def inboxes(self) -> str:
        return inbox(self.prefix, "")


def _asking(world: World) -> tuple[str | int, ...]:
    waits, arrival = world.one_of("try", "wait", "wait"), world.arrival()
    return world.token(), world.ttl(), waits, arrival, FENCE_MS, world.claim(), world.inboxes


def _acquire(world: World) -> Drawn:
    args = list(_asking(world))
    if world.rng.random() < 0.2:
        args[3] = -5_000_000  # waited so long already
    if world.rng.random() < 0.3:
        args += (world.token(), *(world.block() or ("", "")))
    return world.keys(), args


def _crash_acquire(world: World) -> Drawn:
    keys = world.keys()
    return [*keys, f"{keys[1]}:crash"], (world.crashing(), *_asking(world)[1:])


def _crash_renew(world: World) -> Drawn:
    """A renewal, or the request that only lengthens."""
    token, base = world.crashing(), world.base()
    if world.rng.random() < 0.2:
        return [base], (token, world.ttl(), 0, -1, world.inboxes)
    keys = [base, f"{base}:order:{token}", f"{base}:fence:crash"]
    return keys, (token, world.ttl(), *world.order(), world.inboxes)


def _release(world: World) -> Drawn:
    return world.keys(), (world.token(), FENCE_MS, world.claim(), world.inboxes, world.tombstone(), *world.block())


def _several(world: World) -> int:
    return world.rng.randrange(1, 5)


def _acquire_each(world: World) -> Drawn:
    locks = [world.keys() for _ in range(_several(world))]
    return [key for keys in locks for key in keys], (world.ttl(), FENCE_MS, *[world.token() for _ in locks])


def _release_each(world: World) -> Drawn:
    locks = [world.keys() for _ in range(_several(world))]
    return [key for keys in locks for key in (keys[0], keys[2])], tuple(world.token() for _ in locks)


def _renew(world: World) -> Drawn:
    token, base = world.token(), world.base()
    return [base, f"{base}:order:{token}"], (token, world.ttl(), *world.order())


def _inspect(world: World) -> Drawn:
    drawn: list[Drawn] = [(world.keys()[:3], ()), (world.keys("readers", "upgraded"), ())]
    return world.rng.choice([*drawn, (_sem_keys(world), ("semaphore",))])


def _rw_acquire(world: World) -> Drawn:
    keys, args = world.keys("readers", "upgraded"), list(_asking(world))
    args[0] = world.reader()
    return keys, args


def _rw_release(world: World) -> Drawn:
    return world.keys("readers", "upgraded"), (
        world.reader(),
        FENCE_MS,
        world.claim(),
        world.inboxes,
        world.tombstone(),
    )


def _rw_renew(world: World) -> Drawn:
    token, keys = world.reader(), world.keys("readers", "upgraded")
    args = (token, world.ttl(), FENCE_MS, world.claim(), world.inboxes, *world.order())
    return [*keys, f"{keys[0]}:order:{token}"], args


def _rw_downgrade(world: World) -> Drawn:
    writer = world.token("1", "w.1")
    reader = writer.replace(":w.", ":r.").replace(":1:", ":r.1:")
    args = (writer, reader, world.ttl(), FENCE_MS, world.claim(), world.inboxes, world.tombstone())
    return world.keys("readers", "upgraded"), args


def _sem_keys(world: World) -> list[str]:
    base = world.base()
    return [f"{base}:sem", *(f"{base}:sem:{name}" for name in ("fence", "queue", "gone", "holders"))]


def _sem_acquire(world: World) -> Drawn:
    args = [*_asking(world), world.one_of(0, 3, 3, 3, 4)]
    args[0] = world.weighted()
    return _sem_keys(world), args


def _sem_release(world: World) -> Drawn:
    return _sem_keys(world), (world.weighted(), FENCE_MS, world.claim(), world.inboxes, world.tombstone())


def _sem_renew(world: World) -> Drawn:
    token, keys = world.weighted(), _sem_keys(world)
    return [*keys, f"{keys[0]}:order:{token}"], (token, world.ttl(), FENCE_MS, *world.order())


def _sem_resize(world: World) -> Drawn:
    return _sem_keys(world), (world.one_of(1, 2, 3, 3, 5), FENCE_MS, world.claim(), world.inboxes)


def _overview(world: World) -> Drawn:
    """Two names, of either kind; the time that it tells is not compared."""
    keys: list[str] = []
    kinds = [world.rng.choice(("lock", "semaphore")) for _ in range(2)]
    for kind in kinds:
        base = world.base()
        many = "holders" if kind == "semaphore" else "readers"
        keys += [base, *(f"{base}:{name}" for name in ("fence", "queue", many, "upgraded"))]
    return keys, (16, *kinds)


def _counts(world: World) -> Drawn:
    """Of two names; what is granted behind it is counted."""
    return [f"{world.base()}:fence" for _ in range(2)], (60_000,)


def _hears(world: World) -> Drawn:
    """A client that listens, or one that does not."""
    return [world.base()], (world.token().partition(":")[0], world.inboxes)


def _there(world: World) -> Drawn:
    """Clients that listen, and some that do not."""
    return world.keys()[3:], (world.inboxes, *CLIENTS)


def _tell(world: World) -> Drawn:
    """To any holder of any kind; some of the notes stay."""
    base, many = world.base(), world.rng.choice(("holders", "readers"))
    token = world.weighted() if many == "holders" else world.reader()
    keys = [base, *(f"{base}:{part}" for part in (many, "upgraded", "gone", f"broken:{token}"))]
    return keys, (token, world.inboxes, world.one_of("break", "want", ""), "them: why", world.one_of(0, 90_000))


def _cond_wait(world: World) -> Drawn:
    return world.keys("cond"), (
        world.token("1", "c.1"),
        world.ttl(),
        world.one_of("wait", "wait", "leave"),
        world.one_of(0, 0, 1_000_000),
        FENCE_MS,
        world.claim(),
        world.inboxes,
        world.token(),
        5_000,
        world.tombstone(),
    )


def _cond_notify(world: World) -> Drawn:
    keys = world.keys("cond", "cond:last")
    return [keys[0], keys[2], keys[4], keys[3], keys[5]], (
        world.token(),
        world.one_of(1, 1, 2, 1000),
        world.inboxes,
        world.one_of(1, 2, 3),
    )


def _cond_leave(world: World) -> Drawn:
    return world.keys("cond"), (
        world.token("1", "c.1"),
        FENCE_MS,
        world.claim(),
        world.inboxes,
        90_000,
        world.one_of(0, 1),
    )


def _gate_wait(world: World) -> Drawn:
    base = world.base()
    return [f"{base}:gate", f"{base}:gate:waiters", f"{base}:gate:gone"], (
        world.token(),
        world.one_of("try", "wait", "wait", "leave"),
        world.one_of(0, 0, 1, 10**15, 10**17),
        world.one_of(2, 2, 2, 3),
        FENCE_MS,
        world.inboxes,
        5_000,
        90_000,
    )


def _gate_move(world: World) -> Drawn:
    base = world.base()
    return [f"{base}:gate", f"{base}:gate:waiters", f"{base}:gate:gone"], (
        world.token("d.1"),
        world.one_of(1, 1, 2, "open", "shut", "look"),
        FENCE_MS,
        world.one_of(2, 2, 2, 3),
        world.inboxes,
        90_000,
    )


def _barrier_keys(world: World) -> list[str]:
    base = world.base()
    return [f"{base}:barrier", f"{base}:barrier:arrived", f"{base}:barrier:released", f"{base}:barrier:gone"]


def _barrier_wait(world: World) -> Drawn:
    return _barrier_keys(world), (
        world.token(),
        world.one_of("wait", "wait", "wait", "wait", "break", "leave"),
        world.one_of(0, 0, 0, 1, 2),
        world.one_of(2, 2, 2, 3),
        FENCE_MS,
        world.inboxes,
        5_000,
        60_000,
    )


def _barrier_move(world: World) -> Drawn:
    state, arrived, _, gone = _barrier_keys(world)
    return [state, arrived, gone], (
        world.one_of("look", "abort", "reset", "reset"),
        world.one_of(2, 2, 2, 3),
        FENCE_MS,
        world.inboxes,
        60_000,
    )


def _multi_keys(world: World) -> list[str]:
    names = world.rng.choice(("a", "b", "ab"))
    suffixes = ("", ":fence", ":queue", ":gone")
    return [f"{world.prefix}:{{{name}}}{suffix}" for name in names for suffix in suffixes]


def _multi_acquire(world: World) -> Drawn:
    return _multi_keys(world), _asking(world)


def _multi_release(world: World) -> Drawn:
    return _multi_keys(world), _release(world)[1][:5]


def _multi_renew(world: World) -> Drawn:
    token, keys = world.token(), _multi_keys(world)
    args = (token, world.ttl(), world.one_of(0, HIGH_FENCE, HIGH_FENCE + 9), FENCE_MS)
    if world.one_of(True, False):  # as a quorum asks its members
        return keys, args
    return [*keys, f"{keys[0]}:order:{token}"], (*args, *world.order())


def _quorum_acquire(world: World) -> Drawn:
    keys = world.keys()
    return [keys[0], keys[1], keys[3]], (
        world.token(),
        world.one_of(0, HIGH_FENCE),
        world.ttl(),
        FENCE_MS,
        0,
        world.one_of("", "check"),
    )


def _renew_many(world: World) -> Drawn:
    keys: list[str] = []
    args: list[str | int] = []
    for name in world.rng.choices(RENEWALS, k=world.rng.randrange(1, 6)):
        own, (token, *shared) = GENERATORS[name](world)
        keys += own
        args += (name, 1, len(own), len(shared), *shared, token)
    return keys, args


def _fenced_set(world: World) -> Drawn:
    base = world.base()
    return [f"{base}:value", f"{base}:seen"], (
        world.one_of(1, 2, 3, HIGH_FENCE),
        world.one_of("x", "y"),
        world.one_of(0, -1, 30_000),
        90_000,
    )


def _set_if(world: World) -> Drawn:
    return [f"{world.base()}:value"], (world.one_of("x", "y"), world.one_of("x", "y"), world.one_of(0, -1, 30_000))


GENERATORS: dict[str, Callable[[World], Drawn]] = {
    "acquire": _acquire,
    "acquire_each": _acquire_each,
    "barrier_move": _barrier_move,
    "barrier_wait": _barrier_wait,
    "crash_acquire": _crash_acquire,
    "crash_renew": _crash_renew,
    "cond_leave": _cond_leave,
    "cond_notify": _cond_notify,
    "cond_wait": _cond_wait,
    "fenced_set": _fenced_set,
    "gate_move": _gate_move,
    "gate_wait": _gate_wait,
    "hears": _hears,
    "inspect": _inspect,
    "counts": _counts,
    "overview": _overview,
    "multi_acquire": _multi_acquire,
    "multi_release": _multi_release,
    "multi_renew": _multi_renew,
    "quorum_acquire": _quorum_acquire,
    "release": _release,
    "release_each": _release_each,
    "renew": _renew,
    "renew_many": _renew_many,
    "rw_acquire": _rw_acquire,
    "rw_downgrade": _rw_downgrade,
    "rw_release": _rw_release,
    "rw_renew": _rw_renew,
    "sem_acquire": _sem_acquire,
    "sem_release": _sem_release,
    "sem_renew": _sem_renew,
    "tell": _tell,
    "there": _there,
    "sem_resize": _sem_resize,
    "set_if": _set_if,
}
