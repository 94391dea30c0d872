"""What `close()` does to those who hold, those who wait, and everything that is called afterwards."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

import holdfast
from testbed.waiting import PATIENCE_S, eventually
from tests.support.apis import Api, AsyncioApi, function_for


def _condition(locks: Any, lock: Any) -> Any:
    return locks.condition(getattr(lock, "_target", lock))


#: What can be held: how a client makes it, and how another one sees that it is free.
HELD: dict[str, Callable[[Any, str], Any]] = {
    "lock": lambda locks, name: locks.lock(name),
    "reentrant": lambda locks, name: locks.lock(name, reentrant=True),
    "read": lambda locks, name: locks.rwlock(name).read(),
    "write": lambda locks, name: locks.rwlock(name).write(),
    "semaphore": lambda locks, name: locks.semaphore(name, 1),
    "multilock": lambda locks, name: locks.multilock(f"{name}-1", f"{name}-2"),
    "unrenewed": lambda locks, name: locks.lock(name, renew=False),
}
#: The one that comes next: where several may read, a writer.
_NEXT = {"read": "write", "reentrant": "lock", "unrenewed": "lock"}
#: What can be waited for, while the lock of that name is held by the same client.
WAITED: dict[str, Callable[[Any, str], Any]] = {
    **HELD,
    "condition": lambda locks, name: _condition(locks, locks.lock(f"{name}-c")),
    "latch": lambda locks, name: locks.latch(name, 1),
    "event": lambda locks, name: locks.event(name),
    "barrier": lambda locks, name: locks.barrier(name, 2),
    "election": lambda locks, name: locks.election(name),
}
kinds = pytest.mark.parametrize("kind", HELD)


@pytest.fixture
def locks(api: Api, valkey_server: Any) -> Any:
    """One kind of server will do: nothing here depends on it."""
    return api.connect(valkey_server.url)


@pytest.fixture
def others(api: Api, valkey_server: Any) -> Any:
    return api.connect(valkey_server.url)


@pytest.fixture
def raw(valkey_server: Any) -> Any:
    with redis.Redis.from_url(valkey_server.url, decode_responses=True) as client:
        yield client


def _take(thing: Any) -> None:
    """Check that it is free at once, and not at the end of some ttl."""
    lease = thing.try_acquire()
    assert lease is not None
    lease.release()


def _next(others: Any, kind: str, name: str) -> Any:
    return HELD[_NEXT.get(kind, kind)](others, name)


@kinds
def test_what_is_held_is_lost_and_told_and_free(locks: Any, others: Any, kind: str, unique_name: str) -> None:
    lease = HELD[kind](locks, unique_name).acquire()
    told: list[holdfast.LeaseLost] = []
    lease.on_lost(told.append)
    locks.close()
    _take(_next(others, kind, unique_name))
    assert (lease.state.name, lease.lost.reason, lease.lost.is_set()) == ("LOST", "closed", True)
    assert lease.remaining() == 0.0
    eventually(lambda: [(error.name, error.reason) for error in told] == [(lease.name, "closed")])
    for operation in (lease.ensure_held, lease.release, lambda: lease.extend(5)):
        with pytest.raises(holdfast.LeaseLost, match=r"closed") as caught:
            operation()
        assert caught.value.reason == "closed"
    locks.close()
    assert len(told) == 1


@kinds
def test_a_block_ends_with_the_loss(api: Api, locks: Any, kind: str, unique_name: str) -> None:
    thing = HELD[kind](locks, unique_name)
    inside = threading.Event()
    closed = threading.Event()

    def block() -> None:
        with thing:
            inside.set()
            assert closed.wait(PATIENCE_S)

    ended = api.start(block)
    assert inside.wait(PATIENCE_S)
    locks.close()
    closed.set()
    with pytest.raises(holdfast.LeaseLost) as caught:
        ended.result(PATIENCE_S)
    assert caught.value.reason == "closed"


@kinds
def test_what_the_block_raises_wins(api: Api, locks: Any, kind: str, unique_name: str) -> None:
    thing = HELD[kind](locks, unique_name)
    inside = threading.Event()
    go_on = threading.Event()

    def block() -> None:
        with thing:
            inside.set()
            assert go_on.wait(PATIENCE_S)
            raise KeyError("of the body")

    async def ablock() -> None:
        async with thing._target:
            inside.set()
            try:
                await asyncio.sleep(PATIENCE_S)
            except asyncio.CancelledError:
                raise KeyError("of the body") from None

    ended = api.start(block) if not isinstance(api, AsyncioApi) else api.start(api.run, ablock())
    assert inside.wait(PATIENCE_S)
    locks.close()
    go_on.set()
    with pytest.raises(KeyError):
        ended.result(PATIENCE_S)


def test_a_client_whose_leases_are_released_closes_in_silence(api: Api, valkey_server: Any, unique_name: str) -> None:
    with api.connect(valkey_server.url) as locks:
        with locks.lock(unique_name) as lease:
            pass
        assert lease.state.name == "RELEASED"
    assert lease.state.name == "RELEASED"


def test_closing_replaces_no_error(api: Api, valkey_server: Any, unique_name: str) -> None:
    with pytest.raises(KeyError), api.connect(valkey_server.url) as locks:
        lease = locks.lock(unique_name).acquire()
        raise KeyError("of the program")
    assert lease.lost.reason == "closed"


def test_decorated(api: Api, locks: Any, unique_name: str) -> None:
    inside = threading.Event()
    go_on = threading.Event()

    def work() -> Any:
        inside.set()
        yield api_wait(api, go_on)
        return "done"

    call = locks.locked(unique_name)(function_for(api, work))
    ended = api.start(api.call, call) if isinstance(api, AsyncioApi) else api.start(call)
    assert inside.wait(PATIENCE_S)
    locks.close()
    go_on.set()
    with pytest.raises(holdfast.LeaseLost) as caught:
        ended.result(PATIENCE_S)
    assert caught.value.reason == "closed"


def api_wait(api: Api, event: threading.Event) -> Any:
    """Wait as the API does: in a thread, or giving way to other tasks."""
    if api.name == "threads":
        return event.wait(PATIENCE_S)

    async def wait() -> bool:
        return await asyncio.to_thread(event.wait, PATIENCE_S)

    return wait()


def test_an_election_ends(api: Api, locks: Any, others: Any, unique_name: str) -> None:
    leading = threading.Event()
    go_on = threading.Event()

    def lead(lease: Any) -> Any:
        leading.set()
        yield api_wait(api, go_on)

    election = locks.election(unique_name)
    ended = api.start(election.run, function_for(api, lead))
    assert leading.wait(PATIENCE_S)
    assert election.is_leader
    locks.close()
    go_on.set()
    with pytest.raises(holdfast.LeaseLost) as caught:
        ended.result(PATIENCE_S)
    assert caught.value.reason == "closed"
    assert not election.is_leader
    others.election(unique_name).campaign(timeout=0).release()


@pytest.mark.parametrize("kind", WAITED)
def test_who_waits_is_told_and_gone(api: Api, locks: Any, others: Any, raw: Any, kind: str, unique_name: str) -> None:
    """And is never handed what its own client lets go of."""
    thing = WAITED[kind](locks, unique_name)
    holder = api.actor()
    kept = None
    waits = "acquire"
    if kind in HELD:
        kept = holder.ask(_next(locks, kind, unique_name), "acquire")
    elif kind == "election":
        kept = holder.ask(locks.election(unique_name), "campaign")
        waits = "campaign"
    else:
        waits = "wait"
    actors = [api.actor() for _ in range(1 if kind == "barrier" else 3)]
    if kind == "condition":
        actors = actors[:1]
        actors[0].enter(thing)
    waiting = [actor.tell(thing, waits) for actor in actors]
    _until_queued(raw, unique_name, len(waiting))
    begun_at = time.monotonic()
    locks.close()
    for one in waiting:
        with pytest.raises(holdfast.ClientClosed):
            one.result(PATIENCE_S)
    assert time.monotonic() - begun_at < PATIENCE_S / 2
    eventually(lambda: _queued(raw, unique_name) == 0)
    assert kept is None or kept.state.name == "LOST"
    if kind in HELD:
        _take(_next(others, kind, unique_name))
    elif kind == "election":
        others.election(unique_name).campaign(timeout=0).release()
    elif kind == "condition":
        _take(others.lock(f"{unique_name}-c"))


def _queued(raw: Any, name: str) -> int:
    """How many stand in any queue of that name."""
    keys = [key for key in raw.scan_iter(f"*{{{name}*", count=1000) if not key.endswith(":gone")]
    return sum(raw.zcard(key) for key in keys if raw.type(key) == "zset" and not key.endswith((":holders", ":readers")))


def _until_gone(raw: Any, *keys: str) -> None:
    eventually(lambda: not raw.exists(*keys))


def _until_queued(raw: Any, name: str, count: int) -> None:
    eventually(lambda: _queued(raw, name) >= count, f"{count} in a queue")


def test_a_lease_that_is_just_being_ended_is_not_held(locks: Any, unique_name: str) -> None:
    """The engine was between two notes of its loss, in one schedule of a thousand."""
    lease = locks.lock(unique_name).acquire()
    del lease._record.unended
    with pytest.raises(holdfast.AcquireTimeout):
        locks.lock(unique_name).acquire(timeout=0)
    lease._record.unended = True
    lease.release()


def test_many_rounds_leave_nothing(api: Api, valkey_server: Any, raw: Any, unique_name: str) -> None:
    """The holder and those who wait are of one client, and no one waits until they are queued."""
    for turn in range(20):
        locks = api.connect(valkey_server.url, ttl=600)
        name = f"{unique_name}-{turn}"
        lease = locks.lock(name).acquire()
        waiting = [api.actor().tell(locks.lock(name), "acquire") for _ in range(4)]
        time.sleep(0.001 * turn)
        locks.close()
        for one in waiting:
            with pytest.raises((holdfast.ClientClosed, holdfast.AlreadyHeld)):
                one.result(PATIENCE_S)
        assert lease.state.name == "LOST"
        _until_gone(raw, f"holdfast:{{{name}}}", f"holdfast:{{{name}}}:queue")


def test_those_who_hold_are_told_before_others_get_in(api: Api, locks: Any, others: Any, unique_name: str) -> None:
    log: list[str] = []
    lease = locks.lock(unique_name).acquire()

    def told(error: Any) -> None:
        time.sleep(0.1)  # what a callback has to do takes its time
        log.append("told")

    lease.on_lost(told)
    other = api.actor()
    taken = other.tell(others.lock(unique_name), "acquire")
    taken.add_done_callback(lambda _: log.append("taken"))
    eventually(lambda: others.lock(unique_name).waiters() == 1)
    locks.close()
    taken.result(PATIENCE_S).release()
    assert log == ["told", "taken"]


def test_closed_by_a_callback(locks: Any, others: Any, raw: Any, unique_name: str) -> None:
    """Of its own loss: `close()` waits for callbacks, and this one for `close()`."""
    one = locks.lock(f"{unique_name}-1").acquire()
    two = locks.lock(f"{unique_name}-2").acquire()
    target = getattr(locks, "_target", locks)
    one.on_lost(lambda error: target.close())
    raw.delete(f"holdfast:{{{unique_name}-1}}")
    with pytest.raises(holdfast.LeaseLost):
        one.extend(20)
    eventually(lambda: two.state.name == "LOST")
    eventually(lambda: not raw.exists(f"holdfast:{{{unique_name}-2}}"))
    assert (one.lost.reason, two.lost.reason) == ("taken", "closed")


def test_closed_by_two_at_once(api: Api, locks: Any, raw: Any, unique_name: str) -> None:
    leases = [locks.lock(f"{unique_name}-{index}").acquire() for index in range(50)]
    for ended in [api.start(locks.close) for _ in range(4)]:
        ended.result(PATIENCE_S)
        assert not raw.exists(*(f"holdfast:{{{unique_name}-{index}}}" for index in range(50))), "all of them wait"
    assert {lease.lost.reason for lease in leases} == {"closed"}


#: Everything that talks to a server.
CALLS: dict[str, Callable[[Any, str], Any]] = {
    "lock.acquire": lambda locks, name: locks.lock(name).acquire(),
    "lock.acquire(timeout)": lambda locks, name: locks.lock(name).acquire(timeout=1),
    "lock.try_acquire": lambda locks, name: locks.lock(name).try_acquire(),
    "lock.locked": lambda locks, name: locks.lock(name).locked(),
    "lock.holder": lambda locks, name: locks.lock(name).holder(),
    "lock.waiters": lambda locks, name: locks.lock(name).waiters(),
    "lock.last_fencing_token": lambda locks, name: locks.lock(name).last_fencing_token(),
    "with lock": lambda locks, name: locks.lock(name).__enter__(),
    "read.acquire": lambda locks, name: locks.rwlock(name).read().acquire(),
    "write.try_acquire": lambda locks, name: locks.rwlock(name).write().try_acquire(),
    "rwlock.readers": lambda locks, name: locks.rwlock(name).readers(),
    "rwlock.writing": lambda locks, name: locks.rwlock(name).writing(),
    "semaphore.acquire": lambda locks, name: locks.semaphore(name, 2).acquire(),
    "semaphore.available": lambda locks, name: locks.semaphore(name, 2).available(),
    "semaphore.resize": lambda locks, name: locks.semaphore(name, 2).resize(3),
    "multilock.acquire": lambda locks, name: locks.multilock(name, name + "2").acquire(),
    "latch.wait": lambda locks, name: locks.latch(name, 1).wait(),
    "latch.count_down": lambda locks, name: locks.latch(name, 1).count_down(),
    "event.set": lambda locks, name: locks.event(name).set(),
    "event.is_set": lambda locks, name: locks.event(name).is_set(),
    "barrier.wait": lambda locks, name: locks.barrier(name, 2).wait(),
    "barrier.n_waiting": lambda locks, name: locks.barrier(name, 2).n_waiting(),
    "election.campaign": lambda locks, name: locks.election(name).campaign(),
    "election.leader": lambda locks, name: locks.election(name).leader(),
    "election.run": lambda locks, name: locks.election(name).run(lambda lease: None),
    "compare_and_set": lambda locks, name: locks.compare_and_set(name, "a", "b"),
    "optimistic.run": lambda locks, name: locks.optimistic(name).run(lambda tx: None),
}


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_nothing_can_be_asked_of_a_closed_client(locks: Any, call: str, used: bool, unique_name: str) -> None:
    if used:
        locks.lock(unique_name).locked()
    locks.close()
    with pytest.raises(holdfast.ClientClosed):
        CALLS[call](locks, unique_name)
