"""Servers that forbid what services forbid: each primitive works, or is refused by what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import redis

import holdfast
from holdfast import embedded
from testbed import servers
from testbed.hiding import HidesSubscribers
from testbed.profiles import PRIMITIVES, PROFILES, TTL_S, Outcome, Profile, outcome, running
from testbed.servers import Kind
from testbed.waiting import PATIENCE_S, eventually, stop
from tests.support.apis import Api


def lived(profile: Profile, kind: Kind) -> dict[str, Outcome]:
    with running(profile, kind) as url, ThreadPoolExecutor(6) as pool:
        return dict(zip(PRIMITIVES, pool.map(partial(outcome, url), PRIMITIVES), strict=True))


def check(profile: Profile, found: dict[str, Outcome]) -> None:
    for primitive, (took_s, refused) in found.items():
        lacks = profile.refused.get(primitive)
        if lacks is None:
            assert took_s is not None, f"{primitive}: {refused}"
            assert took_s < TTL_S / 3, f"{primitive}: it was told, or asked, and did not wait for the end of a lease"
        else:
            assert re.search(rf"'[^']+' needs {lacks}\b", refused), f"{primitive}: {refused}"


@pytest.mark.filterwarnings("ignore:.*no scripts:RuntimeWarning")
@pytest.mark.parametrize("name", PROFILES)
def test_each_primitive_works_or_says_what_it_lacks(name: str) -> None:
    check(PROFILES[name], lived(PROFILES[name], "valkey"))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*no scripts:RuntimeWarning")
@pytest.mark.parametrize("name", PROFILES)
def test_the_same_on_every_kind_of_server(name: str, server_kind: Kind) -> None:
    check(PROFILES[name], lived(PROFILES[name], server_kind))


def test_replicas_are_refused_where_there_is_no_wait(api: Api, unique_name: str) -> None:
    with running(PROFILES["no WAIT"]) as url:
        locks = api.connect(url, sync_replicas=1)
        for _ in range(2):
            with pytest.raises(holdfast.ConfigurationError, match="forbids WAIT, so sync_replicas is not supported"):
                locks.lock(unique_name).acquire(timeout=PATIENCE_S)
        api.connect(url).lock(unique_name).acquire(timeout=PATIENCE_S).release()


# ---------------------------------------------------------------- waiting where no message comes


@pytest.fixture(scope="module")
def untold() -> Iterator[str]:
    with running(PROFILES["no pub/sub"]) as url:
        yield url


@pytest.fixture
def hiding(valkey_server: embedded.Server) -> Iterator[str]:
    """A way to the shared Valkey on which it does not know who subscribes."""
    with HidesSubscribers(valkey_server) as proxy:
        yield proxy.url


def in_turn(api: Api, clients: list[Any], name: str) -> tuple[list[int], float]:
    """Have them wait one after the other: in which order they get in, and how long a handoff takes, s."""
    order: list[int] = []
    took: list[float] = []
    lease = clients[0].lock(name, ttl=60).acquire()
    released_at = 0.0

    def wait(number: int) -> None:
        nonlocal released_at
        mine = clients[number].lock(name, ttl=60).acquire(timeout=PATIENCE_S)
        took.append(time.monotonic() - released_at)
        order.append(number)
        released_at = time.monotonic()
        mine.release()

    waiting = []
    for number in range(1, len(clients)):
        waiting.append(api.start(wait, number))
        eventually(lambda number=number: clients[0].lock(name).waiters() == number)  # type: ignore[misc]
    released_at = time.monotonic()
    lease.release()
    for each in waiting:
        each.result(2 * PATIENCE_S)
    return order, sorted(took)[len(took) // 2]


def test_waiters_that_ask_get_in_as_they_came(api: Api, untold: str, unique_name: str) -> None:
    order, took_s = in_turn(api, [api.connect(untold) for _ in range(6)], unique_name)
    assert order == [1, 2, 3, 4, 5]
    assert took_s < 2, "by asking, and not by the end of a claim"


def test_those_that_are_told_and_those_that_ask_share_a_queue(
    api: Api, hiding: str, valkey_server: embedded.Server, unique_name: str
) -> None:
    told = [api.connect(valkey_server.url) for _ in range(3)]
    asking = [api.connect(hiding) for _ in range(3)]
    order, took_s = in_turn(api, [told[0], asking[0], told[1], asking[1], asking[2], told[2]], unique_name)
    assert order == [1, 2, 3, 4, 5]
    assert took_s < 2


def test_a_client_is_told_once_its_server_can(api: Api, unique_name: str) -> None:
    """Ask again what a server can do when its connection has ended: another one may be there then."""
    with servers.start(config={"rename-command": 'PUBLISH ""'}) as before:
        locks, other = api.connect(before.url, ttl=60), api.connect(before.url, ttl=60)
        lease = locks.lock(unique_name).acquire()
        waiting = api.start(other.lock(unique_name).acquire, timeout=PATIENCE_S)
        with redis.Redis.from_url(before.url) as look:
            eventually(lambda: look.zcard(f"holdfast:{{{unique_name}}}:gone"))  # by its mark
        lease.release()
        waiting.result(PATIENCE_S).release()
    with servers.start(port=before.port) as now, redis.Redis.from_url(now.url) as look:
        lease = locks.lock(unique_name).acquire(timeout=PATIENCE_S)
        waiting = api.start(other.lock(unique_name).acquire, timeout=2 * PATIENCE_S)
        eventually(lambda: other.lock(unique_name).waiters() == 1)
        assert not look.exists(f"holdfast:{{{unique_name}}}:gone")
        lease.release()
        waiting.result(PATIENCE_S).release()


def test_what_a_client_keeps_is_not_kept_where_it_would_not_hear(api: Api, untold: str, unique_name: str) -> None:
    keeps, other = api.connect(untold), api.connect(untold)
    for _ in range(3):
        keeps.lock(unique_name, ttl=60, cache_for=30).acquire().release()
    began_at = time.monotonic()
    other.lock(unique_name).acquire(timeout=PATIENCE_S).release()
    assert time.monotonic() - began_at < 10


def test_a_deadlock_of_those_that_ask_is_found(untold: str, unique_name: str) -> None:
    ends: list[Any] = []

    def hold(mine: str, other: str) -> None:
        with holdfast.connect(untold, ttl=60) as locks, locks.lock(f"{unique_name}-{mine}"):
            both.wait(PATIENCE_S)
            try:
                with locks.lock(f"{unique_name}-{other}", deadlock_check=0.2):
                    ends.append("held both")
            except holdfast.DeadlockDetected as error:
                ends.append(error)

    both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(hold, "a", "b"), pool.submit(hold, "b", "a")]:
            done.result(2 * PATIENCE_S)
    assert sorted(map(type, ends), key=repr) == [holdfast.DeadlockDetected, str]


#: A waiter to be killed.
WAITER = "import holdfast, sys; holdfast.connect(sys.argv[1]).lock(sys.argv[2], ttl=600).acquire()"


@pytest.mark.parametrize("end", [subprocess.Popen.kill, lambda process: stop(process.pid)], ids=["killed", "stopped"])
def test_dead_waiters_are_passed_over(api: Api, untold: str, unique_name: str, end: Callable[..., None]) -> None:
    """Within seconds, however many there are, and not within the time of a lease."""
    locks, live = api.connect(untold), api.connect(untold)
    lease = locks.lock(unique_name, ttl=600).acquire()
    dead = []
    try:
        for count in range(1, 5):
            dead.append(subprocess.Popen([sys.executable, "-c", WAITER, untold, unique_name]))
            eventually(lambda count=count: locks.lock(unique_name).waiters() == count)  # type: ignore[misc]
        waiting = api.start(live.lock(unique_name, ttl=600).acquire, timeout=120)
        eventually(lambda: locks.lock(unique_name).waiters() == 5)
        for each in dead:
            end(each)
        began_at = time.monotonic()
        lease.release()
        waiting.result(120).release()
        assert time.monotonic() - began_at < 30, "less than a claim window for each of them, and far less than a lease"
    finally:
        for each in dead:
            each.kill()
            each.wait()


def test_a_mark_is_left_only_by_those_that_ask(
    api: Api, hiding: str, valkey_server: embedded.Server, marks: Callable[[str], list[str]], unique_name: str
) -> None:
    lease = api.connect(valkey_server.url).lock(unique_name, ttl=60).acquire()
    with ThreadPoolExecutor(1) as pool:
        locks = api.connect(valkey_server.url)
        told = pool.submit(locks.lock(unique_name).acquire, timeout=PATIENCE_S)
        eventually(lambda: locks.lock(unique_name).waiters() == 1)
        assert not marks(unique_name)
        asking = api.start(api.connect(hiding).lock(unique_name).acquire, timeout=PATIENCE_S)
        eventually(lambda: len(marks(unique_name)) == 1)
        lease.release()
        told.result(PATIENCE_S).release()
        asking.result(PATIENCE_S).release()
    eventually(lambda: not marks(unique_name))


def test_marks_that_are_over_go_while_others_ask(api: Api, hiding: str, marks: Any, unique_name: str) -> None:
    """However many clients come and go where someone always waits."""
    lease = api.connect(hiding).lock(unique_name, ttl=60).acquire()
    waiting = api.start(api.connect(hiding).lock(unique_name).acquire, timeout=2 * PATIENCE_S)

    def in_vain() -> bool:
        try:
            api.connect(hiding).lock(unique_name).acquire(timeout=0.2)
        except holdfast.AcquireTimeout:
            return True
        except holdfast.ServerUnreachable:  # on a busy machine, which has no answer by then
            return False
        raise AssertionError("it is held")

    for _ in range(5):
        eventually(in_vain)
    assert len(marks(unique_name)) > 1
    eventually(lambda: len(marks(unique_name)) == 1)
    lease.release()
    waiting.result(PATIENCE_S).release()


@pytest.fixture
def marks(valkey_server: embedded.Server) -> Iterator[Callable[[str], list[str]]]:
    """The clients with a mark at a lock on the shared Valkey."""
    with redis.Redis.from_url(valkey_server.url, decode_responses=True) as client:
        yield lambda name: [each for each in client.zrange(f"holdfast:{{{name}}}:gone", 0, -1) if ":" not in each]
