"""Whatever the public API can do is played in the simulator's worlds, or stands here with the reason why it is not.

The operations are read from the modules, and what is played is told by the worlds themselves: one that is added to the
API, or forgotten by the worlds, fails this test.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import typing
from collections.abc import Iterator
from types import ModuleType

import holdfast
from holdfast import fencing
from sim.primitives import found
from sim.run import run_seed

#: Seeds of a primitive, at most, until all of it was played that any of them plays.
SEEDS = range(6)

_FACT = "a fact of the object: sends nothing"
_MAKES = "makes an object: sends nothing"
_LOOKS = "looks only; what looks is played as Election.leader, and compared with real servers in tests/differential"
_TOLD = "tells in this process what Lease.ensure_held sees; the drivers tell it: tests/contract, tests/process"
_CHECKED = "a renewal that is waited for, which extend is, too: tests/contract/test_checks.py"
_HANDED_OVER = "asks what extend does, and ends a lease in one client: tests/contract/test_handing_over.py"
_ONE_BY_ONE = "its protocol is played in the modes of breaks; and tests/contract/test_break.py"
_ASKED = "tells in this process what came in the inbox: tests/contract/test_break.py"
_OF_OTHERS = "a readers-writer lock around a guarded write, which are played: tests/contract/test_once.py"
_OBSERVED = "tells of what has happened: tests/package/test_observers.py"
_MIXED = "a loop or a decorator around what is played"

NOT_PLAYED: dict[str, str] = {
    **dict.fromkeys([f"{kind}Lease.check" for kind in ("", "Read", "Write")], _CHECKED),
    **dict.fromkeys(("Client.adopt", *(f"{kind}Lease.handle" for kind in ("", "Read", "Write"))), _HANDED_OVER),
    **dict.fromkeys(
        (
            *("Barrier.name", "Barrier.parties", "CountDownLatch.name", "Election.name", "Event.name", "RWLock.name"),
            *(
                "Client.namespace",
                "Client.held",
                "Client.tasks",
                "LeaseInfo.queue_full",
                "Condition.lock",
                "MultiLock.names",
                "Semaphore.permits",
                "FenceGate.newest",
            ),
            *(f"{lock}.{fact}" for lock in ("Lock", "MultiLock", "ReadLock", "WriteLock") for fact in ("name", "ttl")),
            *("Semaphore.name", "Semaphore.ttl"),
            *(
                f"{lease}.{fact}"
                for lease in ("Lease", "ReadLease", "WriteLease")
                for fact in ("name", "fencing_token", "held", "token")
            ),
            *(f"Holder.{fact}" for fact in ("client_since", "fencing_token", "host", "ours", "pid", "program")),
            *(
                "Holder.gone",
                "Holder.kept",
                "Holder.note",
                "Holder.remaining_s",
                "Holder.since",
                "Holder.token",
                "Holder.who",
            ),
            *(f"Asked.{fact}" for fact in ("deaf", "found", "holders", "kind", "name")),
            *(f"Broken.{fact}" for fact in ("forced", "found", "holders", "kind", "name")),
            *(f"LeaseInfo.{fact}" for fact in ("asked_at", "captured", "fencing_token", "kind", "name", "task")),
            *("LeaseInfo.holder", "LeaseInfo.thread", "LeaseInfo.waited_s"),
            *(f"Outcome.{fact}" for fact in ("count", "index", "new", "result")),
            *(f"{kind}Status.{fact}" for kind in ("Lock", "RWLock", "Semaphore") for fact in ("name", "fencing_token")),
            *(
                "LockStatus.held",
                "LockStatus.holder",
                "LockStatus.remaining_s",
                "LockStatus.since",
                "LockStatus.waiters",
            ),
            *("RWLockStatus.readers", "RWLockStatus.waiters", "RWLockStatus.writer", "SemaphoreStatus.available"),
            *(f"SemaphoreStatus.{fact}" for fact in ("holders", "permits", "used", "waiters")),
            *(f"Waiting.{fact}" for fact in ("holder", "kind", "name", "place", "waited_s")),
            *(f"Waiter.{fact}" for fact in ("age_s", "host", "pid", "program", "token")),
            *(f"Listed.{fact}" for fact in ("fencing_token", "held", "holder", "holders", "kind", "name", "permits")),
            *("Listed.grants", "Listed.odd", "Listed.queue", "Listed.seen_at", "Listed.waiters"),
            "Deadlock.parties",
            *(f"DeadlockParty.{fact}" for fact in ("held_kind", "held_name", "held_token", "holds", "host", "kind")),
            *(f"DeadlockParty.{fact}" for fact in ("name", "owner", "pid", "program", "timeout_left_s", "token")),
            *(f"DeadlockParty.{fact}" for fact in ("waited_s", "where", "who")),
            *(
                f"Change.{fact}"
                for fact in ("at", "fencing_token", "grants", "held", "kind", "name", "reason", "waiters")
            ),
            *(
                "Change.what",
                "Change.who",
            ),
        ),
        _FACT,
    ),
    **dict.fromkeys(
        (
            "connect",
            *(f"Client.{made}" for made in ("barrier", "condition", "election", "event", "latch", "lock")),
            *(f"Client.{made}" for made in ("multilock", "optimistic", "rwlock", "semaphore")),
            *("RWLock.read", "RWLock.write"),
        ),
        _MAKES,
    ),
    **dict.fromkeys(
        (
            *("Barrier.broken", "Barrier.generation", "Barrier.n_waiting"),
            *("Lock.holder", "Lock.last_fencing_token", "Lock.locked", "Lock.waiters"),
            *("Client.deadlocks", "Client.list", "Client.watch", "Lock.status", "RWLock.status", "Semaphore.status"),
            *("RWLock.readers", "RWLock.waiters", "RWLock.writing", "Semaphore.available", "Semaphore.waiters"),
        ),
        _LOOKS,
    ),
    **dict.fromkeys(
        (
            *(
                f"{lease}.{told}"
                for lease in ("Lease", "ReadLease", "WriteLease")
                for told in ("lost", "on_lost", "remaining", "state")
            ),
            *("Loss.is_set", "Loss.reason", "Loss.wait"),
        ),
        _TOLD,
    ),
    **dict.fromkeys(("Client.ask", "Client.break_"), _ONE_BY_ONE),
    **dict.fromkeys(
        (
            *(f"{kind}Lease.{told}" for kind in ("", "Read", "Write") for told in ("on_wanted", "wanted")),
            *(f"Wanted.{told}" for told in ("is_set", "name", "reason", "wait")),
        ),
        _ASKED,
    ),
    **dict.fromkeys(("Client.forget", "Client.get_or_set", "Client.once"), _OF_OTHERS),
    **dict.fromkeys(
        (
            *(f"Observer.{event}" for event in ("acquired", "busy", "capture", "failed", "lost", "queued", "released")),
            *(f"Observer.{event}" for event in ("renewed", "suspect", "trouble", "trouble_over")),
        ),
        _OBSERVED,
    ),
    **dict.fromkeys(("Client.lock_for", "Client.locked", "Client.limited", "Condition.wait_for"), _MIXED),
    **dict.fromkeys(
        ("Cancel.clear", "Cancel.is_set", "Cancel.isSet", "Cancel.set", "Cancel.wait"),
        "an event of threading; what it does to an acquisition is the worlds' cancellation, at any effect",
    ),
    "Client.explain": "looks at what a break has written, as Client.watch does: tests/contract/test_watch.py",
    "Transaction.delete": "queues a command as Transaction.set does",
    "FenceGate.check": "a gate in this process: tests/unit/test_fencing.py",
    "check_rowcount": "looks at a number of rows: tests/unit/test_fencing.py",
}


def operations(module: ModuleType, skips: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield what can be called or read of what a module makes public, but for errors and enumerations."""
    for name in module.__all__:
        value = getattr(module, name)
        if name in skips:
            continue
        if typing.is_typeddict(value):
            continue  # options, which are played as arguments
        if not inspect.isclass(value):
            yield name
        elif not issubclass(value, BaseException | enum.Enum):
            there = (each for each in dir(value) if not each.startswith("_") and hasattr(value, each))
            yield from (f"{name}.{each}" for each in there)


def played() -> set[str]:
    """Return what the worlds of every primitive say that they have played, and one over a quorum."""
    seen: set[str] = set()
    for name in found():
        for seed in SEEDS:
            seen |= run_seed(seed, names=[name]).played
    return seen | run_seed(4, "quorum").played


def test_everything_public_is_in_the_simulator() -> None:
    public = {*operations(holdfast), *operations(fencing, skips=("guarded_set",)), "fencing.guarded_set"}
    asyncio = {*operations(importlib.import_module("holdfast.asyncio"))}
    assert not asyncio - public, "the same operations in both"
    seen = played()
    assert not seen - public, "the worlds play what is not public"
    forgotten = public - seen - set(NOT_PLAYED)
    assert not forgotten, "neither played in a world, nor in the table with its reason"
    assert not set(NOT_PLAYED) & seen, "it is played: take it out of the table"
    assert not set(NOT_PLAYED) - public, "there is no such thing any more"
