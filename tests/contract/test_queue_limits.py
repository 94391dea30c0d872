"""Queue limits: one too many in the queue is turned away at once."""

from __future__ import annotations

import pickle
from concurrent.futures import as_completed
from functools import partial
from typing import Any

import pytest

from holdfast import AcquireTimeout, ConfigurationError, LeaseInfo, Observer, QueueFull
from holdfast._core import tenure
from testbed.waiting import eventually
from tests.support.apis import Api

#: What has a queue, its first holder, and how those that wait behind are seen.
KINDS: dict[str, tuple[Any, Any]] = {
    "lock": (lambda locks, name, **how: locks.lock(name, **how), lambda locks, name: locks.lock(name)),
    "kept": (
        lambda locks, name, **how: locks.lock(name, cache_for=1, **how),
        lambda locks, name: locks.lock(name),
    ),
    "read": (lambda locks, name, **how: locks.rwlock(name, **how).read(), lambda locks, name: locks.rwlock(name)),
    "write": (lambda locks, name, **how: locks.rwlock(name, **how).write(), lambda locks, name: locks.rwlock(name)),
    "semaphore": (
        lambda locks, name, **how: locks.semaphore(name, permits=1, **how),
        lambda locks, name: locks.semaphore(name, permits=1),
    ),
}


def held(api: Api, locks: Any, kind: str, name: str) -> Any:
    """The lease that all wait for: another thread's, or task's."""
    make = KINDS["write" if kind == "read" else "lock" if kind == "kept" else kind][0]
    return api.actor().ask(make(locks, name), "acquire")


@pytest.mark.parametrize("kind", KINDS)
def test_one_runs_one_waits_and_the_rest_is_turned_away(
    locks: Any, others: Any, api: Api, kind: str, unique_name: str
) -> None:
    make, seen = KINDS[kind]
    first = held(api, locks, kind, unique_name)
    waiting = api.start(make(locks, unique_name, queue_limit=1).acquire)
    eventually(lambda: seen(others, unique_name).status().waiters == 1)
    for client in (locks, others):
        with pytest.raises(QueueFull, match="queue_limit is 1") as caught:
            make(client, unique_name, queue_limit=1).acquire()
        error = caught.value
        assert (error.name, error.queue_limit, isinstance(error, AcquireTimeout)) == (unique_name, 1, True)
    assert seen(others, unique_name).status().waiters == 1  # those are not in it
    first.release()
    waiting.result(60).release()
    make(others, unique_name, queue_limit=1).acquire().release()


@pytest.mark.parametrize("kind", KINDS)
def test_none_may_wait(locks: Any, others: Any, api: Api, kind: str, unique_name: str) -> None:
    make, seen = KINDS[kind]
    first = held(api, locks, kind, unique_name)
    with pytest.raises(QueueFull, match="not free"):
        make(others, unique_name, queue_limit=0).acquire(timeout=60)
    assert seen(others, unique_name).status().waiters == 0
    first.release()
    make(others, unique_name, queue_limit=0).acquire(timeout=60).release()


def test_a_timeout_is_not_a_full_queue(others: Any, locks: Any, api: Api, unique_name: str) -> None:
    first = held(api, locks, "lock", unique_name)
    with pytest.raises(AcquireTimeout) as caught:
        others.lock(unique_name, queue_limit=5).acquire(timeout=0.05)
    assert not isinstance(caught.value, QueueFull)
    first.release()


def test_a_limit_holds_for_those_that_have_it(locks: Any, others: Any, api: Api, url: str, unique_name: str) -> None:
    """A waiter without one waits, and is counted."""
    first = held(api, locks, "lock", unique_name)
    waiting = [api.start(client.lock(unique_name).acquire) for client in (others, api.connect(url))]
    eventually(lambda: locks.lock(unique_name).status().waiters == 2)
    with pytest.raises(QueueFull):
        locks.lock(unique_name, queue_limit=2).acquire()
    waiting.append(api.start(locks.lock(unique_name, queue_limit=3).acquire))
    eventually(lambda: locks.lock(unique_name).status().waiters == 3)
    first.release()
    for each in as_completed(waiting, timeout=60):
        each.result().release()


@pytest.mark.parametrize("dead", [1, 100, 700])
def test_dead_waiters_are_not_counted(locks: Any, api: Api, raw: Any, dead: int, unique_name: str) -> None:
    first = held(api, locks, "lock", unique_name)
    raw.zadd(f"holdfast:{{{unique_name}}}:queue", {f"{number:024x}:1:1": number + 1 for number in range(dead)})
    waiting = api.start(locks.lock(unique_name, queue_limit=1).acquire)
    queue = f"holdfast:{{{unique_name}}}:queue"
    eventually(lambda: raw.zcard(queue) == 1 and raw.zscore(queue, f"{0:024x}:1:1") is None)  # the living one
    with pytest.raises(QueueFull):
        locks.lock(unique_name, queue_limit=1).acquire(timeout=60)
    first.release()
    waiting.result(60).release()


def _count_waiters(client: Any, name: str, expected: int) -> bool:
    return bool(client.lock(name).status().waiters == expected)


def test_one_that_could_wait_inside_of_its_client_is_counted(
    locks: Any, others: Any, api: Api, monkeypatch: pytest.MonkeyPatch, unique_name: str
) -> None:
    """The third of a client would wait behind the second, which asks for both; and not seen by others, for as long."""
    monkeypatch.setattr(tenure, "ALONE_MS", 100_000)
    first = held(api, others, "lock", unique_name)
    waiting = []
    for number in (1, 2):
        waiting.append(api.start(locks.lock(unique_name, queue_limit=2).acquire))
        eventually(partial(_count_waiters, others, unique_name, number))
    with pytest.raises(QueueFull):
        locks.lock(unique_name, queue_limit=2).acquire(timeout=10)
    first.release()
    for each in as_completed(waiting, timeout=60):
        each.result().release()


def test_many_at_once_are_counted_exactly(locks: Any, others: Any, api: Api, unique_name: str) -> None:
    first = locks.lock(unique_name, queue_limit=3).acquire()
    waiting = [
        api.start(client.lock(unique_name, queue_limit=3).acquire) for _ in range(10) for client in (locks, others)
    ]
    eventually(lambda: sum(each.done() for each in waiting) == 17)
    full = [each for each in waiting if each.done()]
    assert all(isinstance(each.exception(), QueueFull) for each in full)
    assert locks.lock(unique_name).status().waiters == 3
    first.release()
    for each in as_completed(set(waiting) - set(full), timeout=60):
        each.result().release()


def test_a_decorated_function_is_turned_away(locks: Any, api: Api, unique_name: str) -> None:
    first = locks.semaphore(unique_name, permits=1).acquire()
    calls: list[int] = []

    def call() -> None:
        calls.append(1)

    async def coroutine() -> None:
        calls.append(1)

    decorate = locks.limited(unique_name, permits=1, queue_limit=0)
    decorated = decorate(call if api.name == "threads" else coroutine)
    run = decorated if api.name == "threads" else lambda: api.call(decorated)  # type: ignore[attr-defined]
    with pytest.raises(QueueFull):
        run()
    first.release()
    run()
    assert calls == [1]


def test_an_observer_is_told_that_it_was_full(api: Api, url: str, unique_name: str) -> None:
    told: list[tuple[str, bool]] = []

    class Watcher(Observer):
        def busy(self, lease: LeaseInfo, waited_s: float) -> None:
            told.append((lease.name, lease.queue_full))

    watched = api.connect(url, observer=Watcher())
    first = api.connect(url).lock(unique_name).acquire()
    with pytest.raises(QueueFull):
        watched.lock(unique_name, queue_limit=0).acquire()
    assert watched.lock(unique_name).try_acquire() is None
    eventually(lambda: told == [(unique_name, True), (unique_name, False)])
    first.release()


@pytest.mark.parametrize("limit", [-1, 10_001, True, 1.5, "3"])
def test_a_limit_is_a_whole_number(locks: Any, limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="queue_limit"):
        locks.lock("name", queue_limit=limit)


def test_several_locks_at_once_have_no_one_queue(locks: Any, api: Api, unique_name: str) -> None:
    with pytest.raises(ConfigurationError, match="several locks"):
        locks.multilock(unique_name, f"{unique_name}-2", queue_limit=1)
    first = held(api, locks, "lock", unique_name)
    with pytest.raises(QueueFull):
        locks.multilock(unique_name, f"{unique_name}-2", queue_limit=0).acquire()
    first.release()


def test_it_survives_pickling() -> None:
    error = QueueFull("a", 0.5, None, 3, "semaphore")
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.queue_limit, copied.waited_s) == (str(error), 3, 0.5)
