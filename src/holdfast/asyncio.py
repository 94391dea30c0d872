"""Distributed locks on Redis and Valkey, for asyncio: the names of `holdfast`, with `await` where it waits.

import holdfast.asyncio

locks = holdfast.asyncio.connect()
async with locks.lock("orders:42", ttl=30) as lease:
    await write(row, fence=lease.fencing_token)
"""

from holdfast._faces.aio import Client, Lease, LeaseState, Lock, Loss, connect
from holdfast._faces.holder import Holder
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
