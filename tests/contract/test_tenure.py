"""Tenures: acquires of one client wait for each other there, and hand the lock on without the server."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest

import holdfast
from holdfast._core.schedule import Schedule
from holdfast._core.settings import DEFAULT
from testbed.waiting import eventually
from tests.support.apis import Api, close_brought

WORKERS = 6
ROUNDS = 30


@pytest.mark.parametrize("tenure", [0.0, 0.002, 0.05])
def test_one_holds_at_a_time_and_tokens_grow(api: Api, url: str, unique_name: str, tenure: float) -> None:
    clients = [api.connect(url, tenure=tenure) for _ in range(2)]
    inside: list[int] = []
    tokens: list[int] = []

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            with clients[number % 2].lock(unique_name) as lease:
                inside.append(number)
                assert inside == [number]
                lease.ensure_held()
                tokens.append(int(lease.fencing_token))
                inside.remove(number)

    for worker in [api.start(work, number) for number in range(WORKERS)]:
        worker.result(60)
    assert len(tokens) == WORKERS * ROUNDS
    assert tokens == sorted(set(tokens))


def test_it_is_handed_on_without_the_server(api: Api, url: str, raw: Any, unique_name: str) -> None:
    locks = api.connect(url, tenure=0.1)
    lease = locks.lock(unique_name).acquire()
    seen: list[str] = []

    def take() -> None:
        with locks.lock(unique_name) as mine:
            seen.append(mine.token)

    workers = [api.start(take) for _ in range(4)]
    eventually(lambda: locks.lock(unique_name).waiters() == 4)
    assert sum(len(line.waiters) for line in lines_of(locks)) == 3, "one asks the server"
    lease.release()
    for worker in workers:
        worker.result(30)
    assert lease.token not in seen and len(set(seen)) < 4, "tenures of several leases"
    eventually(lambda: not raw.exists(f"holdfast:{{{unique_name}}}"))


def in_turns(api: Api, locks: Any, name: str, held_s: float, over: threading.Event) -> tuple[list[Any], list[str]]:
    """Four workers of that client take the lock again and again; and the tokens by which they did."""
    tokens: list[str] = []

    def work() -> None:
        while not over.is_set():
            with locks.lock(name) as lease:
                tokens.append(lease.token)
                time.sleep(held_s)

    return [api.start(work) for _ in range(4)], tokens


def test_without_other_clients_it_is_handed_on_beyond_the_tenure(api: Api, url: str, unique_name: str) -> None:
    over = threading.Event()
    workers, tokens = in_turns(api, api.connect(url, tenure=0.002), unique_name, 0.004, over)
    # Each lease lasts longer than a tenure.
    eventually(lambda: max(Counter(tokens).values(), default=0) >= 3)
    over.set()
    for worker in workers:
        worker.result(30)


def test_the_first_of_another_client_that_waits_is_next(api: Api, url: str, unique_name: str) -> None:
    brought = api.redis().Redis.from_url(url)
    patient = api.client(brought, _settings=DEFAULT._replace(undisturbed_ms=60_000.0))
    over = threading.Event()
    workers, tokens = in_turns(api, patient, unique_name, 0.01, over)
    eventually(lambda: max(Counter(tokens).values(), default=0) >= 20)
    before = len(tokens)
    with api.connect(url).lock(unique_name).acquire(timeout=30):
        # Before it came, and while the message travelled, some more; with none, it would have been thousands.
        assert len(tokens) - before < 50
    over.set()
    for worker in workers:
        worker.result(30)
    patient.close()
    close_brought(api, brought)


def lines_of(locks: Any) -> list[Any]:
    return list(locks._session.driver.lines.values())


def test_one_that_gives_up_leaves_the_others_their_turn(api: Api, url: str, unique_name: str) -> None:
    locks = api.connect(url, tenure=0.1)
    lease = locks.lock(unique_name).acquire()
    first = api.start(lambda: locks.lock(unique_name).acquire(timeout=30).release())
    eventually(lambda: locks.lock(unique_name).waiters() == 1)
    with pytest.raises(holdfast.AcquireTimeout):
        api.start(lambda: locks.lock(unique_name).acquire(timeout=0.05)).result(30)
    patient = api.start(lambda: locks.lock(unique_name).acquire(timeout=30).release())
    eventually(lambda: any(line.waiters for line in lines_of(locks)))
    lease.release()
    first.result(30)
    patient.result(30)


def test_a_client_that_is_closed_ends_the_waiting(api: Api, url: str, raw: Any, unique_name: str) -> None:
    locks = api.connect(url, tenure=0.1)
    held = locks.lock(unique_name).acquire()
    waiting = [api.start(lambda: locks.lock(unique_name).acquire()) for _ in range(3)]
    eventually(lambda: locks.lock(unique_name).waiters() == 3)
    locks.close()
    for each in waiting:
        with pytest.raises(holdfast.ClientClosed):
            each.result(30)
    assert held.state is holdfast.LeaseState.LOST
    assert not raw.exists(f"holdfast:{{{unique_name}}}")


def test_one_that_is_alone_begins_no_line(api: Api, url: str, unique_name: str) -> None:
    """Nor does the next, after a release, a timeout, or an attempt that was refused."""
    locks, others = (api.connect(url, tenure=0.1) for _ in range(2))
    lock = locks.lock(unique_name)
    for _ in range(3):
        with lock, locks.lock(unique_name + "-2"):
            assert not lines_of(locks)
    theirs = others.lock(unique_name).acquire()
    assert lock.try_acquire() is None
    with pytest.raises(holdfast.AcquireTimeout):
        lock.acquire(timeout=0.05)
    theirs.release()
    with lock:
        pass
    with lock:
        assert not lines_of(locks)


@pytest.mark.parametrize("value", [-1, 0.11, True, "0.002", float("nan")])
def test_what_is_no_tenure_is_refused(api: Api, url: str, value: object) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="tenure"):
        api.connect(url, tenure=value)


def test_a_client_counts_its_own_waiters(api: Api, url: str, unique_name: str) -> None:
    """Each once: those in its line, and those queued at the server; of another client only the latter.

    These are two of each client: the one that came first, alone, and the one that found it, and began a line.
    """
    locks, others = (api.connect(url, tenure=0.002) for _ in range(2))
    lease = locks.lock(unique_name).acquire()

    def take(client: Any, ttl: float) -> None:
        with client.lock(unique_name, ttl=ttl):
            pass

    waiting = [api.start(take, others, 30.0)]
    eventually(lambda: others.lock(unique_name).waiters() == 1)
    waiting += [api.start(take, client, 30.0) for client in (locks, locks, locks, others, others)]
    waiting.append(api.start(take, locks, 20.0))  # with other options: in a line of its own
    eventually(lambda: locks.lock(unique_name).waiters() == 6)
    eventually(lambda: others.lock(unique_name).status().waiters == 5)
    lease.release()
    for each in waiting:
        each.result(60)
    assert locks.lock(unique_name).waiters() == 0


def test_a_condition_lets_those_in_who_wait_in_the_same_client(api: Api, url: str, unique_name: str) -> None:
    """The waiters do not wait any longer for a lease that has ended without being handed on."""
    locks = api.connect(url, tenure=0.002)
    lock = locks.lock(unique_name)
    condition = locks.condition(lock._target if api.name == "asyncio" else lock)
    waiter = api.actor()
    waiter.enter(lock)
    behind = api.start(lambda: locks.lock(unique_name).acquire().release())
    eventually(lambda: lock.waiters() == 1)
    told = waiter.tell(condition, "wait", 0.5)
    behind.result(20)  # the ttl is 30 s
    assert told.result(60) is False
    waiter.leave(lock)


def test_a_lease_that_is_released_meanwhile_is_not_extended(
    api: Api, url: str, raw: Any, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token may be another lease's by then, which would not know that its time was cut."""
    locks = api.connect(url, tenure=0.002)
    lease = locks.lock(unique_name, ttl=30).acquire()
    bare = getattr(lease, "_target", lease)
    driver, hold = bare._driver, bare._record
    extending = Schedule.extending

    def late(*args: Any) -> Any:
        order = extending(*args)
        assert driver.schedule.finish(hold)  # another thread releases it here
        return order

    monkeypatch.setattr(Schedule, "extending", late)
    with pytest.raises(holdfast.LeaseReleased):
        lease.extend(1)
    assert raw.pttl(f"holdfast:{{{unique_name}}}") > 20_000
    raw.delete(f"holdfast:{{{unique_name}}}")
