"""Every error says of which kind and name it speaks, what happened, and a way out that this kind has."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from testbed.waiting import eventually
from tests.support.apis import Api, AsyncioApi


@pytest.fixture
def locks(api: Api, valkey_server: embedded.Server) -> Any:
    return api.connect(valkey_server.url)


@pytest.fixture
def others(api: Api, valkey_server: embedded.Server) -> Any:
    return api.connect(valkey_server.url)


#: What can be acquired: its kind in messages, how to make it, and how to acquire.
KINDS: dict[str, tuple[Callable[[Any, str], Any], str]] = {
    "lock": (lambda locks, name: locks.lock(name, ttl=1), "acquire"),
    "read lock": (lambda locks, name: locks.rwlock(name, ttl=1).read(), "acquire"),
    "write lock": (lambda locks, name: locks.rwlock(name, ttl=1).write(), "acquire"),
    "semaphore": (lambda locks, name: locks.semaphore(name, permits=1, ttl=1), "acquire"),
    "multilock": (lambda locks, name: locks.multilock(name, ttl=1), "acquire"),
    "election": (lambda locks, name: locks.election(name, ttl=1), "campaign"),
}
ALL = pytest.mark.parametrize("kind", KINDS)


def says(error: holdfast.HoldfastError, kind: str, name: str) -> bool:
    """True if the error names both, as text and as fields, also after a pickle."""
    again = pickle.loads(pickle.dumps(error))
    return (error.kind, error.name) == (kind, name) == (again.kind, again.name) and f"{kind} {name!r}" in str(again)  # type: ignore[attr-defined]


@ALL
def test_a_timeout(locks: Any, others: Any, unique_name: str, kind: str) -> None:
    make, acquire = KINDS[kind]
    holder = KINDS["write lock"][0](others, unique_name) if kind == "read lock" else make(others, unique_name)
    lease = getattr(holder, acquire)()
    with pytest.raises(holdfast.AcquireTimeout, match="was not acquired within") as error:
        getattr(make(locks, unique_name), acquire)(timeout=0)
    assert says(error.value, kind, unique_name)
    lease.release()


@ALL
def test_a_second_release(locks: Any, unique_name: str, kind: str) -> None:
    make, acquire = KINDS[kind]
    lease = getattr(make(locks, unique_name), acquire)()
    lease.release()
    for method, arguments in (("release", ()), ("extend", (1,)), ("ensure_held", ())):
        with pytest.raises(holdfast.LeaseReleased, match=rf"^{method}\(\): .* was already released") as error:
            getattr(lease, method)(*arguments)
        assert says(error.value, kind, unique_name)


@ALL
def test_a_loss(api: Api, locks: Any, unique_name: str, kind: str) -> None:
    make, acquire = KINDS[kind]
    lease = getattr(make(locks, unique_name), acquire)()
    told: list[holdfast.LeaseLost] = []
    lease.on_lost(told.append)
    hold = lease._record
    api.call(hold.lose, "taken") if isinstance(api, AsyncioApi) else hold.lose("taken")
    eventually(lambda: told)
    with pytest.raises(holdfast.LeaseLost, match=r"is lost \(taken\)") as error:
        lease.release()
    assert says(error.value, kind, unique_name) and says(told[0], kind, unique_name)


#: Who holds the first and asks for the second: the way out.
AGAIN = {
    ("lock", "lock"): "reentrant=True",
    ("read lock", "read lock"): "go on with the lease it has",
    ("write lock", "write lock"): "go on with the lease it has",
    ("read lock", "write lock"): r"upgrade\(\)",
    ("write lock", "read lock"): r"downgrade\(\)",
    ("read lock", "lock"): "release that lease",
    ("lock", "read lock"): "release that lease",
    ("lock", "multilock"): "release that lease",
    ("multilock", "multilock"): "release that lease",
    ("multilock", "lock"): "release that lease",
    ("election", "election"): r"resign\(\)",
}


@pytest.mark.parametrize("held, wanted", AGAIN, ids=lambda kind: kind.replace(" ", "-"))
def test_what_is_held_already(api: Api, locks: Any, unique_name: str, held: str, wanted: str) -> None:
    actor = api.actor()
    first, acquire = KINDS[held]
    second, again = KINDS[wanted]
    lease = actor.ask(first(locks, unique_name), acquire)
    with pytest.raises(holdfast.AlreadyHeld, match=AGAIN[held, wanted]) as error:
        actor.ask(second(locks, unique_name), again)
    assert says(error.value, held, unique_name) and error.value.wanted == wanted
    if (held, wanted) != ("lock", "lock"):
        assert "reentrant" not in str(error.value)
    lease.release()


def test_a_reader_is_no_holder_of_a_reentrant_lock(api: Api, locks: Any, others: Any, unique_name: str) -> None:
    """Others read beside it: the lease of one reader must not pass for the exclusive lock."""
    actor = api.actor()
    lease = actor.ask(locks.rwlock(unique_name).read(), "acquire")
    beside = others.rwlock(unique_name).read().acquire()
    lock = locks.lock(unique_name, reentrant=True)
    with pytest.raises(holdfast.AlreadyHeld):
        actor.ask(lock, "acquire")
    assert actor.ask(lock, "try_acquire") is None
    beside.release()
    lease.release()
    writing = actor.ask(locks.rwlock(unique_name).write(), "acquire")
    assert actor.ask(lock, "acquire").token == writing.token, "a writer is alone"
    for _ in range(2):
        writing.release()
    assert not lock.locked()


def test_an_operation_of_the_holder(locks: Any, unique_name: str) -> None:
    with pytest.raises(
        holdfast.NotHeld, match=r"^notify\(\) needs lock '.*' to be held by the calling thread or task"
    ) as error:
        lock = locks.lock(unique_name)
        locks.condition(getattr(lock, "_target", lock)).notify()
    assert says(error.value, "lock", unique_name)


def test_too_few_replicas(api: Api, private_server: Any, unique_name: str) -> None:
    locks = api.connect(private_server().url)  # the shared ones end a WAIT late
    uses: dict[str, Callable[[], Any]] = {
        "lock": lambda: locks.lock(unique_name, ttl=1, sync_replicas=1).acquire(timeout=1),
        "semaphore": lambda: locks.semaphore(unique_name, permits=1, ttl=1, sync_replicas=1).acquire(timeout=1),
        "multilock": lambda: locks.multilock(unique_name, ttl=1, sync_replicas=1).acquire(timeout=1),
        "election": lambda: locks.election(unique_name, ttl=1, sync_replicas=1).campaign(timeout=1),
    }
    for kind, use in uses.items():
        with pytest.raises(holdfast.InsufficientReplicas) as error:
            use()
        assert says(error.value, kind, unique_name)


def waiting(thing: Any, acquire: str, cancel: holdfast.Cancel) -> Any:
    return getattr(thing, acquire)(cancel=cancel)


def test_a_cancelled_wait(valkey_server: embedded.Server, unique_name: str) -> None:
    with holdfast.connect(valkey_server.url) as locks, holdfast.connect(valkey_server.url) as others:
        waits: dict[str, Callable[[Any], Any]] = {
            kind: partial(waiting, make(locks, unique_name), acquire) for kind, (make, acquire) in KINDS.items()
        }
        waits["latch"] = lambda cancel: locks.latch(unique_name, 1).wait(cancel=cancel)
        waits["event"] = lambda cancel: locks.event(unique_name).wait(cancel=cancel)
        waits["barrier"] = lambda cancel: locks.barrier(unique_name, 2).wait(cancel=cancel)
        held = [others.lock(unique_name), others.semaphore(unique_name, permits=1), others.election(unique_name)._lock]
        leases = [each.acquire() for each in held]
        for kind, wait in waits.items():
            cancel = holdfast.Cancel()
            threading.Timer(0.1, cancel.set).start()
            with pytest.raises(holdfast.AcquireCancelled) as error:
                wait(cancel)
            assert says(error.value, kind, unique_name)
        for lease in leases:
            lease.release()


@ALL
def test_a_lease_that_is_dropped(valkey_server: embedded.Server, unique_name: str, kind: str) -> None:
    make, _ = KINDS[kind]
    with holdfast.connect(valkey_server.url) as locks:
        thing = make(locks, unique_name)
        getter = thing._lock if kind == "election" else thing
        with pytest.warns(ResourceWarning, match=f"the lease of {kind} '{unique_name}' was dropped"):
            getter.acquire()
