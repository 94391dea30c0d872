"""Calls of scripts in the worst state that they can meet: many waiters, dead or alive, holders, readers, parties.

For the bench, which measures how long the server is busy with each, and for a test that counts the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from holdfast._lua import SCRIPTS

__all__ = ["LISTED", "PILE", "PILES", "Pile", "listening"]

#: How many of each there are, where nothing allows fewer.
PILE = 10_000
#: How many names one call of a listing looks at, and how many holders and waiters of each; the same for deadlocks.
LISTED = ((10, 16), (2, 256))
_INBOXES = "holdfast:inbox:"
_CLIENTS = 50
_TTL_MS, _CLAIM_MS, _FENCE_MS, _TOMBSTONE_MS = 600_000, 2_000, 86_400_000, 60_000
_US = 1_772_373_787_280_000
_ME = f"{'f' * 24}:1:1"
_LOCK = "holdfast:{pile}"
_KEYS = [_LOCK, f"{_LOCK}:fence", f"{_LOCK}:queue", f"{_LOCK}:gone"]
_WAITERS = f"{_LOCK}:waiters"
_RELEASE = (_FENCE_MS, _CLAIM_MS, _INBOXES)
_AGAIN = (_FENCE_MS, _CLAIM_MS, _INBOXES, _TOMBSTONE_MS)


class Pile(NamedTuple):
    """A call of `script`. `prepare` writes what it meets, and is given a pipeline and the server's time in ms."""

    what: str
    script: str
    keys: list[str]
    args: list[Any]
    prepare: Callable[[Any, int], None]

    def set_up(self, raw: Any) -> None:
        """Only this is on the server then."""
        raw.flushall()
        with raw.pipeline(transaction=False) as pipeline:
            self.prepare(pipeline, raw.time()[0] * 1000)
            pipeline.execute()

    def call(self, raw: Any, before: str = "") -> Any:
        """Make the call as a client does, with `before` in front of the script."""
        return raw.eval(before + SCRIPTS[self.script].text, len(self.keys), *self.keys, *self.args)


@contextmanager
def listening(raw: Any) -> Iterator[None]:
    """The inboxes of those who wait are there."""
    inboxes = raw.pubsub()
    inboxes.subscribe(*[f"{_INBOXES}{number:024x}" for number in range(_CLIENTS)], f"{_INBOXES}{'f' * 24}")
    try:
        yield
    finally:
        inboxes.close()


def _token(number: int, middle: str, alive: bool) -> str:
    client = number % _CLIENTS if alive else 1_000_000 + number
    return f"{client:024x}:{middle}:{number}"


def _queued(
    key: str, middle: str = "1", alive: bool = True, count: int = PILE, at: int = _US
) -> Callable[[Any, int], None]:
    def prepare(raw: Any, now_ms: int) -> None:
        for first in range(0, count, 1_000):
            some = range(first, min(first + 1_000, count))
            raw.zadd(key, {_token(number, middle, alive): at + number for number in some})
        raw.pexpire(key, _TTL_MS)

    return prepare


def _held(key: str = _LOCK, token: str = _ME) -> Callable[[Any, int], None]:
    return lambda raw, now_ms: raw.set(key, token, px=_TTL_MS)


def _holders(key: str, middle: str, over: bool, count: int = PILE, mine: str = "") -> Callable[[Any, int], None]:
    def prepare(raw: Any, now_ms: int) -> None:
        _queued(key, middle, count=count, at=now_ms - 2 * PILE if over else now_ms + _TTL_MS)(raw, now_ms)
        if mine:
            raw.zadd(key, {mine: now_ms + _TTL_MS})

    return prepare


def _all(*parts: Callable[[Any, int], Any]) -> Callable[[Any, int], None]:
    def prepare(raw: Any, now_ms: int) -> None:
        for part in parts:
            part(raw, now_ms)

    return prepare


def _locks() -> Iterator[Pile]:
    for who, alive in (("dead", False), ("living", True)):
        queue = _queued(_KEYS[2], alive=alive)
        acquire = [_ME, _TTL_MS, "wait", 0, *_RELEASE]
        yield Pile(f"release, {who} waiters", "release", _KEYS, [_ME, *_RELEASE, 0], _all(_held(), queue))
        yield Pile(f"giving back, {who} waiters", "release", _KEYS, [_ME, *_AGAIN], _all(_held(), queue))
        yield Pile(f"acquire what is free, {who} waiters", "acquire", _KEYS, acquire, queue)
        crash = [*_KEYS, f"{_LOCK}:fence:crash"]
        yield Pile(f"acquire with crash_release, {who} waiters", "crash_acquire", crash, acquire, queue)
        yield Pile(f"acquire what is held, {who} waiters", "acquire", _KEYS, acquire, _all(_held(token="x"), queue))
    yield Pile(
        "giving back, tombstones",
        "release",
        _KEYS,
        [_ME, *_AGAIN],
        _all(_held(), _holders(_KEYS[3], "1", True)),
    )


def _readers() -> Iterator[Pile]:
    keys = [*_KEYS, f"{_LOCK}:readers", f"{_LOCK}:upgraded"]
    shared = _held(token="000000000000000000000000:shared:0")
    reader, writer = f"{'f' * 24}:r.1:1", f"{'f' * 24}:w.1:1"
    over = _holders(keys[4], "r.1", True)
    for who, middle, alive in (("dead", "w.1", False), ("reading", "r.1", True), ("writing", "w.1", True)):
        queue = _queued(keys[2], middle, alive)
        yield Pile(
            f"release of a writer, {who} waiters",
            "rw_release",
            keys,
            [writer, *_RELEASE, 0],
            _all(_held(token=writer), queue),
        )
        yield Pile(
            f"acquire for reading, {who} waiters", "rw_acquire", keys, [reader, _TTL_MS, "wait", 0, *_RELEASE], queue
        )
    downgrade = [writer, reader, _TTL_MS, *_AGAIN]
    queue = _queued(keys[2], "r.1")
    yield Pile("downgrade, reading waiters", "rw_downgrade", keys, downgrade, _all(_held(token=writer), queue))
    for whose, token in (("reading", reader), ("writing", writer)):
        acquire = [token, _TTL_MS, "wait", 0, *_RELEASE]
        yield Pile(f"acquire for {whose}, readers that are over", "rw_acquire", keys, acquire, _all(shared, over))
    held = _holders(keys[4], "r.1", False, mine=reader)
    both = _holders(keys[4], "r.1", True, mine=reader)
    release = [reader, *_RELEASE, 0]
    renew = [reader, _TTL_MS, *_RELEASE, 1, -1]
    for which, readers in (("readers", held), ("readers that are over", both)):
        yield Pile(f"release of a reader, {which}", "rw_release", keys, release, _all(shared, readers))
        yield Pile(f"renewal of a reader, {which}", "rw_renew", [*keys, "order"], renew, _all(shared, readers))
        yield Pile(f"look, {which}", "inspect", keys, [], _all(shared, readers))


def _semaphores() -> Iterator[Pile]:
    keys = [f"{_LOCK}:sem{part}" for part in ("", ":fence", ":queue", ":gone", ":holders")]
    me = f"{'f' * 24}:1.1:1"
    acquire = [me, _TTL_MS, "wait", 0, *_RELEASE, PILE]
    limit = _held(keys[0], f"{PILE} {PILE}")
    for who, alive in (("dead", False), ("living", True)):
        queue = _queued(keys[2], "1.1", alive)
        yield Pile(f"resize, {who} waiters", "sem_resize", keys, [PILE, *_RELEASE], _all(_held(keys[0], "1 1"), queue))
        yield Pile(
            f"release of permits, {who} waiters",
            "sem_release",
            keys,
            [me, *_RELEASE, 0],
            _all(limit, queue, _holders(keys[4], "1.1", False, 1, mine=me)),
        )
    for each, middle, total in (("of one permit", "1.1", f"{PILE} {PILE}"), ("of two", "2.1", f"{PILE} {PILE} {PILE}")):
        of_all = _held(keys[0], total)
        over, stand = _holders(keys[4], middle, True, mine=me), _holders(keys[4], middle, False)
        expired = _holders(keys[4], middle, True)
        yield Pile(f"acquire, holders {each} that are over", "sem_acquire", keys, acquire, _all(of_all, expired))
        yield Pile(f"release, holders {each} that are over", "sem_release", keys, [me, *_AGAIN], _all(of_all, over))
        yield Pile(
            f"renewal, holders {each} that are over",
            "sem_renew",
            [*keys, "order"],
            [me, _TTL_MS, _FENCE_MS, 1, -1],
            _all(of_all, over),
        )
        yield Pile(f"look, holders {each} that are over", "inspect", keys, ["semaphore"], _all(of_all, over))
        yield Pile(f"acquire, holders {each}, the limit is lost", "sem_acquire", keys, acquire, stand)
        yield Pile(f"look, holders {each}, the limit is lost", "inspect", keys, ["semaphore"], stand)


def _signals() -> Iterator[Pile]:
    keys = [*_KEYS, _WAITERS]
    for who, alive in (("dead", False), ("living", True)):
        waiters = _queued(_WAITERS, alive=alive)
        yield Pile(
            f"notify_all, {who} waiters",
            "cond_notify",
            [_LOCK, _KEYS[2], _WAITERS, _KEYS[3], f"{_LOCK}:last"],
            [_ME, 1_000_000, _INBOXES, 1],
            _all(_held(), waiters),
        )
        yield Pile(
            f"leave a condition, {who} waiters",
            "cond_leave",
            keys,
            [_ME, *_AGAIN, 1],
            _all(_held(), _queued(_KEYS[2], alive=alive), waiters),
        )
        yield Pile(
            f"wait on a condition, {who} waiters",
            "cond_wait",
            keys,
            [f"{'f' * 24}:1:2", _TTL_MS, "wait", 0, *_RELEASE, _ME, 5_000, 0],
            _all(_held(), _queued(_KEYS[2], alive=alive), waiters),
        )
    gate = [_LOCK, _WAITERS, _KEYS[3]]
    yield Pile(
        "set an event, living waiters",
        "gate_move",
        gate,
        [_ME, "open", _TTL_MS, 1, _INBOXES, _TOMBSTONE_MS],
        _queued(_WAITERS),
    )
    yield Pile(
        "wait for an event, dead waiters",
        "gate_wait",
        gate,
        [_ME, "wait", 0, 1, _TTL_MS, _INBOXES, 5_000, _TOMBSTONE_MS],
        _queued(_WAITERS, alive=False),
    )


def _barriers() -> Iterator[Pile]:
    parties = 1_000
    keys = [_LOCK, f"{_LOCK}:arrived", f"{_LOCK}:released", _KEYS[3]]
    args = [parties, _TTL_MS, _INBOXES, 5_000, _TOMBSTONE_MS]
    for who, alive in (("dead", False), ("living", True)):
        others = _queued(keys[1], alive=alive, count=parties - 1)
        yield Pile(
            f"last of {parties} parties, the others {who}", "barrier_wait", keys, [_ME, "wait", 0, *args], others
        )
    everyone = _queued(keys[1], count=parties)
    yield Pile(f"break a barrier of {parties}", "barrier_wait", keys, [_ME, "break", 0, *args], everyone)
    for what in ("abort", "reset"):
        yield Pile(
            f"{what} a barrier of {parties}",
            "barrier_move",
            [keys[0], keys[1], keys[3]],
            [what, parties, _TTL_MS, _INBOXES, _TOMBSTONE_MS],
            everyone,
        )


def _many() -> Iterator[Pile]:
    names = [f"holdfast:{{pile{number}}}" for number in range(100)]
    keys = [name + part for name in names for part in ("", ":fence", ":queue", ":gone")]
    queues = _all(*[_queued(f"{name}:queue", alive=False, count=1_000) for name in names])
    held = _all(*[_held(name) for name in names])
    acquire = [_ME, _TTL_MS, "wait", 0, *_RELEASE]
    yield Pile("acquire 100 names", "multi_acquire", keys, acquire, _all())
    yield Pile("acquire 100 names, dead waiters", "multi_acquire", keys, acquire, queues)
    yield Pile("release 100 names", "multi_release", keys, [_ME, *_RELEASE, 0], held)
    yield Pile("release 100 names, dead waiters", "multi_release", keys, [_ME, *_RELEASE, 0], _all(held, queues))
    yield Pile("give back 100 names, dead waiters", "multi_release", keys, [_ME, *_AGAIN], _all(held, queues))
    yield Pile("renewal of 100 names", "multi_renew", [*keys, "order"], [_ME, _TTL_MS, 0, _FENCE_MS, 1, -1], held)
    living = _all(*[_queued(f"{name}:queue", count=10) for name in names])
    yield Pile("release 100 names, living waiters", "multi_release", keys, [_ME, *_RELEASE, 0], _all(held, living))
    few = names[:32]
    yield Pile(
        "acquire 32 locks at once",
        "acquire_each",
        keys[: 4 * len(few)],
        [_TTL_MS, _FENCE_MS, *[_ME] * len(few)],
        _all(),
    )
    yield Pile(
        "release 32 locks at once",
        "release_each",
        [name + part for name in few for part in ("", ":queue")],
        [_ME] * len(few),
        _all(*[_held(name) for name in few]),
    )
    yield Pile(
        "renewal of 60 locks at once",
        "renew_many",
        [name + part for name in names[:60] for part in ("", ":order")],
        ["renew", 60, 2, 3, _TTL_MS, 1, -1, *[_ME] * 60],
        held,
    )
    me, sems = f"{'f' * 24}:1.1:1", [f"{name}:sem" for name in names[:20]]
    parts = ["", ":fence", ":queue", ":gone", ":holders", ":order"]
    yield Pile(
        "renewal of 20 semaphores at once, holders that are over",
        "renew_many",
        [sem + part for sem in sems for part in parts],
        ["sem_renew", 20, 6, 4, _TTL_MS, _FENCE_MS, 1, -1, *[me] * 20],
        _all(
            *[_held(sem, "9 9") for sem in sems], *[_holders(f"{sem}:holders", "1.1", True, 1_000, me) for sem in sems]
        ),
    )
    reader = f"{'f' * 24}:r.1:1"
    parts = ["", ":fence", ":queue", ":gone", ":readers", ":upgraded", ":order"]
    yield Pile(
        "renewal of 17 readers at once, readers that are over",
        "renew_many",
        [name + part for name in names[:17] for part in parts],
        ["rw_renew", 17, 7, 6, _TTL_MS, *_RELEASE, 1, -1, *[reader] * 17],
        _all(
            *[_held(name, "000000000000000000000000:shared:0") for name in names[:17]],
            *[_holders(f"{name}:readers", "r.1", True, 1_000, reader) for name in names[:17]],
        ),
    )
    parts = ["", ":fence", ":queue", ":readers", ":upgraded"]
    for count, most in LISTED:
        looked = names[:count]
        yield Pile(
            f"list {count} names, {most} of each",
            "overview",
            [name + part for name in looked for part in parts],
            [most, *["lock"] * count],
            _all(
                *[_held(name, "000000000000000000000000:shared:0") for name in looked],
                *[_queued(f"{name}:queue", count=1_000) for name in looked],
                *[_holders(f"{name}:readers", "r.1", False, 1_000) for name in looked],
            ),
        )


PILES: dict[str, Pile] = {
    pile.what: pile
    for piles in (_locks(), _readers(), _semaphores(), _signals(), _barriers(), _many())
    for pile in piles
}
