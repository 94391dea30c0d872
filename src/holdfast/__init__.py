"""Distributed locks on Redis and Valkey, for threads. The same names for asyncio: `holdfast.asyncio`.

import holdfast

locks = holdfast.connect()
with locks.lock("orders:42", ttl=30) as lease:
    write(row, fence=lease.fencing_token)
"""

from __future__ import annotations

TYPE_CHECKING = False  # that of typing, which takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

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
        BrokenBarrierError,
        CannotStartThread,
        ClientClosed,
        ConfigurationError,
        DeclarationMismatch,
        HoldfastError,
        InsufficientReplicas,
        LeaseLost,
        LeaseReleased,
        NotHeld,
        OptimisticConflict,
        OutcomeUnknown,
        QuorumUnreachable,
        ScriptRefused,
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
    "BrokenBarrierError",
    "Cancel",
    "CannotStartThread",
    "Client",
    "ClientClosed",
    "Condition",
    "ConfigurationError",
    "CountDownLatch",
    "DeclarationMismatch",
    "Election",
    "Event",
    "Holder",
    "HoldfastError",
    "InsufficientReplicas",
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
    "ScriptRefused",
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

#: Where public names live. Imported when first asked for: `holdfast run` stands in front of cron jobs, and a program
#: that uses locks alone need not pay for the whole family (and asyncio) at its start.
_HOMES = (
    "holdfast.errors",
    "holdfast._faces.threads",
    "holdfast._faces.holder",
    "holdfast._faces.threads_family",
)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("asyncio", "embedded", "errors", "fencing", "testing"):
        return import_module(f"holdfast.{name}")
    if name in __all__:
        for home in _HOMES:
            module = import_module(home)
            if name in module.__all__:
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
