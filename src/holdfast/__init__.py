"""Distributed locks on Redis and Valkey, for threads. The same names for asyncio: `holdfast.asyncio`.

import holdfast

locks = holdfast.connect()
with locks.lock("orders:42", ttl=30) as lease:
    write(row, fence=lease.fencing_token)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast._runtime.lazily import lazily as _lazily

if TYPE_CHECKING:
    from holdfast._api.breaking import Asked, Broken
    from holdfast._api.changes import Change
    from holdfast._api.deadlocks import Deadlock, DeadlockParty
    from holdfast._api.holder import Holder, LockStatus, RWLockStatus, SemaphoreStatus, Waiting
    from holdfast._api.options import LeaseOptions
    from holdfast._api.outcome import Outcome
    from holdfast._api.overview import Listed, Waiter
    from holdfast._reports.observing import LeaseInfo, Observer
    from holdfast._runtime.cancel import Cancel
    from holdfast._sync.client import Client, connect
    from holdfast._sync.condition import Condition
    from holdfast._sync.election import Election
    from holdfast._sync.gates import Barrier, CountDownLatch, Event
    from holdfast._sync.lease import Lease, LeaseState, Loss, Wanted
    from holdfast._sync.lock import Lock
    from holdfast._sync.multilock import MultiLock
    from holdfast._sync.optimistic import Optimistic, Transaction
    from holdfast._sync.rwlock import ReadLease, ReadLock, RWLock, WriteLease, WriteLock
    from holdfast._sync.semaphore import Semaphore
    from holdfast.errors import *

__all__ = [
    "AcquireCancelled",
    "AcquireTimeout",
    "AlreadyHeld",
    "Asked",
    "Barrier",
    "Broken",
    "BrokenBarrierError",
    "Cancel",
    "CannotStartThread",
    "Change",
    "Client",
    "ClientClosed",
    "Condition",
    "ConfigurationError",
    "CountDownLatch",
    "Deadlock",
    "DeadlockDetected",
    "DeadlockParty",
    "DeclarationMismatch",
    "Election",
    "Event",
    "Holder",
    "HoldfastError",
    "InsufficientReplicas",
    "Lease",
    "LeaseInfo",
    "LeaseLost",
    "LeaseOptions",
    "LeaseReleased",
    "LeaseState",
    "LeaseSuspect",
    "Listed",
    "Lock",
    "LockStatus",
    "Loss",
    "MakeFailed",
    "MultiLock",
    "NotHeld",
    "Observer",
    "OnceConflict",
    "Optimistic",
    "OptimisticConflict",
    "Outcome",
    "OutcomeUnknown",
    "QueueFull",
    "QuorumUnreachable",
    "RWLock",
    "RWLockStatus",
    "ReadLease",
    "ReadLock",
    "ScriptRefused",
    "Semaphore",
    "SemaphoreStatus",
    "ServerError",
    "ServerUnreachable",
    "StaleFencingToken",
    "TooManyPermits",
    "Transaction",
    "UpgradeRefused",
    "Waiter",
    "Waiting",
    "Wanted",
    "WriteLease",
    "WriteLock",
    "connect",
]

__version__ = "0.1.0"

#: Where public names live. Imported when first asked for: `holdfast run` stands in front of cron jobs, and a program
#: that uses locks alone need not pay for the whole family (and asyncio) at its start.
_HOMES = {
    "_api.breaking": ("Asked", "Broken"),
    "_api.changes": ("Change",),
    "_api.deadlocks": ("Deadlock", "DeadlockParty"),
    "_api.holder": ("Holder", "LockStatus", "RWLockStatus", "SemaphoreStatus", "Waiting"),
    "_api.outcome": ("Outcome",),
    "_api.overview": ("Listed", "Waiter"),
    "_api.options": ("LeaseOptions",),
    "_runtime.cancel": ("Cancel",),
    "_reports.observing": ("LeaseInfo", "Observer"),
    "_sync.client": ("Client", "connect"),
    "_sync.condition": ("Condition",),
    "_sync.election": ("Election",),
    "_sync.gates": ("Barrier", "CountDownLatch", "Event"),
    "_sync.lease": ("Lease", "LeaseState", "Loss", "Wanted"),
    "_sync.lock": ("Lock",),
    "_sync.multilock": ("MultiLock",),
    "_sync.optimistic": ("Optimistic", "Transaction"),
    "_sync.rwlock": ("RWLock", "ReadLease", "ReadLock", "WriteLease", "WriteLock"),
    "_sync.semaphore": ("Semaphore",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("asyncio", "embedded", "errors", "fencing", "testing", "trio"):
        return _lazily(f"holdfast.{name}")
    if name in __all__:
        value = globals()[name] = getattr(_lazily(f"holdfast.{_HOME.get(name, 'errors')}"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
