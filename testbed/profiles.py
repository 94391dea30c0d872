"""Servers that forbid what services forbid, and what each primitive comes to there.

    python -m testbed.profiles [PROFILE …]

prints the table: for each profile and primitive the time from a release (a notification, an opening) to the end of the
wait, in ms; or what the primitive is refused for, by a `ConfigurationError` at its first use; or "fails", which is a
bug.

What services forbid is taken from their documentation. A profile shows that holdfast works without it, not that it
works on that service.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import redis

import holdfast
from holdfast import embedded
from testbed import servers
from testbed.hiding import HidesSubscribers
from testbed.waiting import eventually

__all__ = ["PRIMITIVES", "PROFILES", "Outcome", "Profile", "outcome", "running"]

#: The lease of the holder that is waited for, s: far longer than any wait may take.
TTL_S = 20.0
#: Of a Cluster.
_SLOTS = 16_384


class Profile(NamedTuple):
    """A server. `refused`: the primitives that cannot work there, with what their error names."""

    stands_for: str
    #: Commands that it does not know, in scripts neither.
    forbids: tuple[str, ...] = ()
    refused: Mapping[str, str] = MappingProxyType({})
    config: Mapping[str, embedded.ConfigValue] = MappingProxyType({})
    #: It knows nothing of subscribers: that stays with what stands before it.
    hides_subscribers: bool = False
    #: Its memory is filled before it is used.
    full: bool = False
    #: It is a Cluster of this one node: what a script says has to be in the slot of its keys.
    cluster: bool = False


# ---------------------------------------------------------------- primitives


def _leased(first: Any, second: Any, waiting: Callable[[], Any]) -> float:
    """Hand over from one to the other: the time from the release to the other's acquire, s."""
    lease = first.acquire()
    return _waits(second.acquire, waiting, lease.release, lambda lease: lease.release())


def _waits(
    wait: Callable[..., Any],
    waiting: Callable[[], Any],
    let: Callable[[], Any],
    then: Callable[[Any], Any] = lambda _: None,
) -> float:
    """Wait in a thread until another one is let go on: how long that takes from then on, s."""
    ended: list[float] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            got = wait(timeout=TTL_S / 2)
            ended.append(time.monotonic())
            then(got)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        shows = _shows(waiting)
        eventually(lambda: raised or shows())
        began_at = time.monotonic()
        let()
    finally:
        thread.join()
    if raised:
        raise raised[0]
    return ended[0] - began_at


def _shows(waits: Callable[[], Any]) -> Callable[[], bool]:
    """True once someone waits, or after a while: not all places can say so."""
    until = time.monotonic() + 1.0
    return lambda: bool(waits()) or time.monotonic() > until


def _lock(one: Any, two: Any, name: str) -> float:
    return _leased(one.lock(name), two.lock(name), one.lock(name).waiters)


def _election(one: Any, two: Any, name: str) -> float:
    term = one.election(name).campaign()
    return _waits(two.election(name).campaign, lambda: False, term.release, lambda term: term.release())


def _semaphore(one: Any, two: Any, name: str) -> float:
    return _leased(one.semaphore(name, 1), two.semaphore(name, 1), one.semaphore(name, 1).waiters)


def _rwlock(one: Any, two: Any, name: str) -> float:
    mine, theirs = one.rwlock(name), two.rwlock(name)
    took_s = _leased(mine.write(), theirs.read(), one.lock(name).waiters)
    return max(took_s, _leased(mine.read(), theirs.write(), one.lock(name).waiters))


def _multilock(one: Any, two: Any, name: str) -> float:
    names = f"{name}-1", f"{name}-2"
    return _leased(one.multilock(*names), two.multilock(*names), one.lock(names[0]).waiters)


def _condition(one: Any, two: Any, name: str) -> float:
    lock, theirs = one.lock(name), two.lock(name)
    condition = two.condition(theirs)

    def wait(timeout: float) -> None:
        with theirs:
            assert condition.wait(timeout=timeout)

    def notify() -> None:
        with lock:
            one.condition(lock).notify()

    return _waits(wait, lambda: False, notify)


def _event(one: Any, two: Any, name: str) -> float:
    return _waits(two.event(name).wait, lambda: False, one.event(name).set)


def _latch(one: Any, two: Any, name: str) -> float:
    return _waits(two.latch(name, 1).wait, lambda: False, one.latch(name, 1).count_down)


def _barrier(one: Any, two: Any, name: str) -> float:
    barrier = one.barrier(name, 2)
    return _waits(two.barrier(name, 2).wait, lambda: barrier.n_waiting, barrier.wait)


def _once(one: Any, two: Any, name: str) -> float:
    begun, let = threading.Event(), threading.Event()

    def make(_lease: Any) -> str:
        begun.set()
        assert let.wait(TTL_S)
        return "made"

    def first() -> None:
        with contextlib.suppress(holdfast.ConfigurationError):  # which the other one is told, too
            one.once(name, make, retain=60)

    maker = threading.Thread(target=first)
    maker.start()
    try:
        begun.wait(1)
        return _waits(lambda timeout: two.once(name, make, retain=60, timeout=timeout), lambda: False, let.set)
    finally:
        let.set()
        maker.join()


def _break(one: Any, two: Any, name: str) -> float:
    lease = one.lock(name).acquire()
    try:
        began_at = time.monotonic()
        assert two.break_(name, reason="a profile")
        two.lock(name).acquire(timeout=TTL_S / 2).release()
        return time.monotonic() - began_at
    finally:
        with contextlib.suppress(holdfast.LeaseLost):
            lease.release()


def _optimistic(one: Any, _two: Any, name: str) -> float:
    one.optimistic(f"holdfast:{name}").run(lambda transaction: transaction.set(f"holdfast:{name}", 1))
    return 0.0


#: By whom else it is waited for, and how long that takes.
PRIMITIVES: dict[str, Callable[[Any, Any, str], float]] = {
    "lock": _lock,
    "election": _election,
    "semaphore": _semaphore,
    "rwlock": _rwlock,
    "multilock": _multilock,
    "condition": _condition,
    "event": _event,
    "latch": _latch,
    "barrier": _barrier,
    "once": _once,
    "break": _break,
    "optimistic": _optimistic,
}

# ---------------------------------------------------------------- profiles

#: What needs scripts; and what waits for others.
_SCRIPTED = tuple(name for name in PRIMITIVES if name not in ("lock", "election", "optimistic"))

PROFILES: dict[str, Profile] = {
    "no PUBSUB in scripts": Profile("Kvrocks, Tair", ("PUBSUB",)),
    "no PUBLISH in scripts": Profile("Garnet before July 2026, Tair", ("PUBLISH", "SPUBLISH")),
    "PUBLISH in the keys' slot": Profile(
        "ElastiCache Serverless: what scripts say to channels is sharded", ("PUBLISH",), cluster=True
    ),
    "no pub/sub": Profile("proxies", ("PUBSUB", "PUBLISH", "SPUBLISH", "SUBSCRIBE", "SSUBSCRIBE", "PSUBSCRIBE")),
    "no SUBSCRIBE": Profile("proxies", ("SUBSCRIBE", "SSUBSCRIBE", "PSUBSCRIBE")),
    "subscribers unknown": Profile("Redis Enterprise, Azure: a proxy has the subscriptions", hides_subscribers=True),
    "no HELLO, CLIENT, INFO, CONFIG": Profile("MemoryDB, Memorystore", ("HELLO", "CLIENT", "INFO", "CONFIG")),
    "no WAIT": Profile("ElastiCache Serverless, Garnet", ("WAIT",)),
    "no EVAL": Profile(
        "OCI Cache, sharded", ("EVAL", "EVALSHA", "SCRIPT", "FCALL"), refused=dict.fromkeys(_SCRIPTED, "EVAL")
    ),
    "no TIME in scripts": Profile(
        "old proxies", ("TIME",), refused=dict.fromkeys((*PRIMITIVES.keys() - {"optimistic"},), "TIME")
    ),
    "volatile-lru, full": Profile(
        "ElastiCache Serverless, as long as others leave what can be evicted before a lease",
        config={"maxmemory-policy": "volatile-lru", "maxmemory": "8mb", "maxmemory-samples": "64"},
        full=True,
    ),
}


@contextlib.contextmanager
def running(profile: Profile, kind: servers.Kind = "valkey") -> Iterator[str]:
    """Start such a server: its URL, as clients see it."""
    program = servers.executable(kind)
    known = profile.forbids if isinstance(program, str) else tuple(_known(kind, profile.forbids))
    config = {**profile.config, "rename-command": [f'{each} ""' for each in known]}
    if profile.cluster:
        config["cluster-enabled"] = "yes"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(servers.start(kind, config=config))
        if profile.full:
            _fill(server)
        if profile.cluster:
            _own_all_slots(server)
            yield f"redis+cluster://{server.host}:{server.port}"
            return
        yield stack.enter_context(HidesSubscribers(server)).url if profile.hides_subscribers else server.url


@functools.cache
def _known(kind: servers.Kind, commands: tuple[str, ...]) -> list[str]:
    """Return those that this version has: others it cannot rename."""
    with servers.start(kind) as server, redis.Redis.from_url(server.url, decode_responses=True) as client:
        found: Any = client.command()
        return [each for each in commands if each.lower() in found]


def _own_all_slots(server: embedded.Server) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLUSTER ADDSLOTS", *range(_SLOTS))
        eventually(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")


def _fill(server: embedded.Server) -> None:
    """Store what may be evicted until something was."""
    with redis.Redis.from_url(server.url) as client:
        for number in range(100_000):
            client.set(f"other:{number}", b"x" * 10_000, ex=3600)
            if number % 50 == 0 and client.info("stats")["evicted_keys"]:
                # The server tells ages by whole seconds.
                eventually(lambda last=number: client.object("idletime", f"other:{last}") >= 2)  # type: ignore[misc]
                return
    raise AssertionError("nothing was evicted")


class Outcome(NamedTuple):
    """The outcome of a primitive: the time that a wait took, or what it was refused for."""

    took_s: float | None
    refused: str = ""


def outcome(url: str, primitive: str) -> Outcome:
    """Live through a contended life of it. Whatever it raises but a refusal is raised."""
    name = servers.unique(primitive)
    with holdfast.connect(url, ttl=TTL_S) as one, holdfast.connect(url, ttl=TTL_S) as two:
        try:
            return Outcome(PRIMITIVES[primitive](one, two, name))
        except holdfast.ConfigurationError as error:
            return Outcome(None, str(error))


def main(words: list[str]) -> int:
    """Print the table; exit status 1 where something fails."""
    failed = False
    wanted = words or list(PROFILES)
    print(" " * 30 + "  ".join(f"{each:>10}" for each in PRIMITIVES))
    for name in wanted:
        cells, notes = [], []
        with running(PROFILES[name]) as url:
            for primitive in PRIMITIVES:
                try:
                    found = outcome(url, primitive)
                except Exception as error:
                    failed = True
                    cells.append("FAILS")
                    notes.append(f"{primitive}: {error!r}")
                else:
                    cells.append("refused" if found.took_s is None else f"{found.took_s * 1000:.0f} ms")
                    if found.refused:
                        notes.append(f"{primitive}: {found.refused}")
        line = f"{name:32}" + "  ".join(f"{cell:>10}" for cell in cells)
        print(line, *(f"    {note}" for note in notes), sep="\n", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
