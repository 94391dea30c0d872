"""Distributed locks on Redis and Valkey, for threads. The same names for asyncio: `holdfast.asyncio`.

import holdfast

locks = holdfast.connect()
with locks.lock("orders:42", ttl=30) as lease:
    write(row, fence=lease.fencing_token)
"""

from holdfast._faces.holder import Holder
from holdfast._faces.threads import Cancel, Client, Lease, LeaseState, Lock, Loss, connect
from holdfast._faces.threads_family import (
    Barrier,
    Condition,
    CountDownLatch,
    Election,
    Event,
    MultiLock,
    Optimistic,
    ReadLease,
    ReadLock,
    RWLock,
    Semaphore,
    Transaction,
    WriteLease,
    WriteLock,
)
from holdfast.errors import (
    AcquireCancelled,
    AcquireTimeout,
    AlreadyHeld,
    BrokenBarrier,
    ClientClosed,
    ConfigurationError,
    DeclaredDifferently,
    HoldfastError,
    LeaseLost,
    LeaseReleased,
    NotHeld,
    OptimisticConflict,
    OutcomeUnknown,
    QuorumUnreachable,
    ReplicasMissing,
    ServerError,
    ServerUnreachable,
    StaleFencingToken,
    TooManyPermits,
    UpgradeRefused,
)

__all__ = [
    "AcquireCancelled",
    "AcquireTimeout",
    "AlreadyHeld",
    "Barrier",
    "BrokenBarrier",
    "Cancel",
    "Client",
    "ClientClosed",
    "Condition",
    "ConfigurationError",
    "CountDownLatch",
    "DeclaredDifferently",
    "Election",
    "Event",
    "Holder",
    "HoldfastError",
    "Lease",
    "LeaseLost",
    "LeaseReleased",
    "LeaseState",
    "Lock",
    "Loss",
    "MultiLock",
    "NotHeld",
    "Optimistic",
    "OptimisticConflict",
    "OutcomeUnknown",
    "QuorumUnreachable",
    "RWLock",
    "ReadLease",
    "ReadLock",
    "ReplicasMissing",
    "Semaphore",
    "ServerError",
    "ServerUnreachable",
    "StaleFencingToken",
    "TooManyPermits",
    "Transaction",
    "UpgradeRefused",
    "WriteLease",
    "WriteLock",
    "connect",
]

__version__ = "0.1.0"
