"""Distributed locks on Redis and Valkey, for asyncio: the names of `holdfast`, with `await` where it waits.

import holdfast.asyncio

locks = holdfast.asyncio.connect()
async with locks.lock("orders:42", ttl=30) as lease:
    await write(row, fence=lease.fencing_token)
"""

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

__all__ = [
    "AcquireCancelled",
    "AcquireTimeout",
    "AlreadyHeld",
    "Asked",
    "Barrier",
    "Broken",
    "BrokenBarrierError",
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
