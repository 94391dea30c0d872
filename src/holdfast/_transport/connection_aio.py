"""Connections that redis-py makes and this package takes over, for asyncio.

Law: at any moment a connection is known to `half_made`, to its node, or closed, so that a forked child finds it.

Theory: the user's redis-py client says how to connect (TLS, users, Sentinel, database), and its connection class does
that; after the handshake we put our own protocol on its transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable
from weakref import WeakSet

from redis.backoff import NoBackoff

from holdfast._transport.handshake import is_tls, late
from holdfast._transport.refusals import connection_failed

__all__ = ["connect", "drop", "forget_half_made", "forget_transport", "half_made", "take_over"]

#: A connection attempt, handshake and discovery included, is given up after this, s.
CONNECT_TIMEOUT_S = 5.0

#: Transports of a kind that cannot be silenced, kept from their finalizers.
_forgotten: list[Any] = []


class Server(Protocol):
    """What connecting has to know of a node."""

    name: str
    make: Callable[[], Any]
    tls: bool


@runtime_checkable
class Forgettable(Protocol):
    """What closes its own copy of the descriptor in a forked child."""

    def forget(self) -> None: ...


#: What no node knows yet: connections in their handshake, inboxes before their confirmation.
half_made: WeakSet[Any] = WeakSet()


def forget_half_made() -> None:
    """After fork in the child, as `Wire.forget`."""
    for each in tuple(half_made):
        if isinstance(each, Forgettable):
            each.forget()
        elif getattr(each, "_writer", None) is not None:
            forget_transport(each._writer.transport)
    half_made.clear()


async def connect(node: Server) -> Any:
    """A connection of the client library, handshake done. Raises `RequestFailed`."""
    connection: Any = None
    try:
        connection = node.make()
        half_made.add(connection)
        node.tls = is_tls(connection)
        # Nothing is repeated behind our back; and notices of maintenance would not be read.
        connection.retry = type(connection.retry)(NoBackoff(), 0)
        connection.maint_notifications_config = None
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await connection.connect()
        connection._writer.transport.is_closing  # noqa: B018 (what is no connection of redis-py has none)
    except TimeoutError as error:
        drop(connection)
        raise late(node.name, CONNECT_TIMEOUT_S, tls=node.tls) from error
    except Exception as error:
        drop(connection)
        raise connection_failed(error, node.name, tls=node.tls) from error
    except BaseException:
        drop(connection)
        raise
    return connection


def drop(connection: Any) -> None:
    """End a connection that was not taken over."""
    if connection is not None and getattr(connection, "_writer", None) is not None:
        connection._writer.transport.abort()
        connection._writer = connection._reader = None


def take_over(connection: Any, protocol: asyncio.Protocol) -> tuple[asyncio.Transport, Any, bytes]:
    """Put our protocol on the connection: (transport, what must be kept alive, what was read ahead).

    Its end may have been seen before, and would not be told again: the transport is closing then.
    """
    writer, reader = connection._writer, connection._reader
    connection._writer = connection._reader = None  # else its finalizer would close ours
    transport: asyncio.Transport = writer.transport
    transport.set_protocol(protocol)
    if getattr(reader, "_eof", False):
        transport.abort()
    return transport, writer, bytes(getattr(reader, "_buffer", b""))


def forget_transport(transport: Any) -> None:
    """Close our copy of the descriptor only; the event loop that it belonged to is not ours any more."""
    while transport is not None:
        sock = getattr(transport, "_sock", None)
        try:
            if sock is not None:
                sock.close()
            # Else the finalizers of the transport and its writer complain, or turn to the event loop.
            if hasattr(transport, "_closing"):
                transport._closing = True
                transport._sock = None
            else:
                transport._closed = True
        except (OSError, AttributeError):
            _forgotten.append(transport)
        transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
