"""Distributed locks on Redis and Valkey, for asyncio: the names of `holdfast`, with `await` where it waits.

import holdfast.asyncio

locks = holdfast.asyncio.connect()
async with locks.lock("orders:42", ttl=30) as lease:
    await write(row, fence=lease.fencing_token)
"""

from holdfast import errors as _errors
from holdfast._api.breaking import Asked, Broken
from holdfast._api.changes import Change
from holdfast._api.deadlocks import Deadlock, DeadlockParty
from holdfast._api.holder import Holder, LockStatus, RWLockStatus, SemaphoreStatus, Waiting
from holdfast._api.options import LeaseOptions
from holdfast._api.outcome import Outcome
from holdfast._api.overview import Listed, Waiter
from holdfast._async.client import Client, connect
from holdfast._async.condition import Condition
from holdfast._async.election import Election
from holdfast._async.gates import Barrier, CountDownLatch, Event
from holdfast._async.lease import Lease, LeaseState, Loss, Wanted
from holdfast._async.lock import Lock
from holdfast._async.multilock import MultiLock
from holdfast._async.optimistic import Optimistic, Transaction
from holdfast._async.rwlock import ReadLease, ReadLock, RWLock, WriteLease, WriteLock
from holdfast._async.semaphore import Semaphore
from holdfast._reports.observing import LeaseInfo, Observer
from holdfast.errors import *
from holdfast.errors import __all__ as __all__

__all__ = [
    "Asked",
    "Barrier",
    "Broken",
    "Change",
    "Client",
    "Condition",
    "CountDownLatch",
    "Deadlock",
    "DeadlockParty",
    "Election",
    "Event",
    "Holder",
    "Lease",
    "LeaseInfo",
    "LeaseOptions",
    "LeaseState",
    "Listed",
    "Lock",
    "LockStatus",
    "Loss",
    "MultiLock",
    "Observer",
    "Optimistic",
    "Outcome",
    "RWLock",
    "RWLockStatus",
    "ReadLease",
    "ReadLock",
    "Semaphore",
    "SemaphoreStatus",
    "Transaction",
    "Waiter",
    "Waiting",
    "Wanted",
    "WriteLease",
    "WriteLock",
    "connect",
]
__all__ += _errors.__all__
