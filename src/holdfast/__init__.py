"""Distributed locks on Redis and Valkey, for threads. The same names for asyncio: `holdfast.asyncio`.

import holdfast

locks = holdfast.connect()
with locks.lock("orders:42", ttl=30) as lease:
    write(row, fence=lease.fencing_token)
"""

from holdfast._faces.holder import Holder
from holdfast._faces.threads import Cancel, Client, Lease, LeaseState, Lock, Loss, connect
from holdfast.errors import (
    AcquireCancelled,
    AcquireTimeout,
    AlreadyHeld,
    ClientClosed,
    ConfigurationError,
    HoldfastError,
    LeaseLost,
    LeaseReleased,
    NotHeld,
    OutcomeUnknown,
    ServerError,
    ServerUnreachable,
)

__all__ = [
    "AcquireCancelled",
    "AcquireTimeout",
    "AlreadyHeld",
    "Cancel",
    "Client",
    "ClientClosed",
    "ConfigurationError",
    "Holder",
    "HoldfastError",
    "Lease",
    "LeaseLost",
    "LeaseReleased",
    "LeaseState",
    "Lock",
    "Loss",
    "NotHeld",
    "OutcomeUnknown",
    "ServerError",
    "ServerUnreachable",
    "connect",
]

__version__ = "0.1.0"
