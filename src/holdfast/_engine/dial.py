"""Connecting, which may wait: in a short-lived thread of its own, with the user's client library.

Law: the engine never waits for a name server, a handshake, or a credential provider; what connects too late is closed.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import hiredis

from holdfast._core.failure import RequestFailed
from holdfast._engine.handshake import connection_failed, is_tls, late
from holdfast._engine.matching import PUSHES
from holdfast._engine.pack import pack_command
from holdfast._runtime.lazily import importing

#: An attempt to connect is given up after this, s.
CONNECT_TIMEOUT_S = 5.0
#: Attempts to reach one server that hang and are not waited for any more: beyond that none is begun.
LATE_MAX = 32

_MORE = object()
_HELLO = pack_command(("HELLO", 3))


class Dial:
    """One attempt to connect: one of `connected(connection, pushes)` and `failed(failure)` is called, in the engine.

    `pushes`: whether messages can come between replies (RESP3).
    """

    def __init__(
        self, server: Any, connected: Callable[[Any, bool], None], failed: Callable[[RequestFailed], None]
    ) -> None:
        self._server = server
        self._engine = server.engine
        self._connected = connected
        self._failed = failed
        self._over = False
        self._timer = self._engine.later(CONNECT_TIMEOUT_S, self._late)
        if len(server.dialling) >= LATE_MAX:
            return
        thread = threading.Thread(target=self._run, name="holdfast-connect", daemon=True)
        server.dialling.add(thread)
        try:
            if sys.is_finalizing():
                raise RuntimeError("the interpreter ends")
            thread.start()
        except RuntimeError:  # no more threads: then its own limits have to do
            server.dialling.discard(thread)
            self._engine.soon(self._run)

    def _run(self) -> None:
        server, engine = self._server, self._engine
        connection: Any = None
        pushes = closed = False
        try:
            while True:
                connection = server.make()
                server.tls = is_tls(connection)
                _prepare(connection)
                connection.connect()
                server.steps += 1
                if not PUSHES or server.hello_closes or getattr(connection, "_sock", None) is None:
                    break
                try:
                    pushes = _speaks_resp3(connection._sock)
                    break
                except ConnectionError:
                    disconnect(connection)
                    # Once it may have been killed, twice it is a proxy that closes at a command which it does not know.
                    server.hello_closes, closed = closed, True
        except BaseException as error:
            if connection is not None:
                disconnect(connection)
            engine.call(self._ended, None, False, connection_failed(error, server.name, tls=server.tls))
        else:
            engine.call(self._ended, connection, pushes, None)
        finally:
            server.dialling.discard(threading.current_thread())

    def _late(self) -> None:
        self._ended(None, False, late(self._server.name, CONNECT_TIMEOUT_S, tls=self._server.tls))

    def _ended(self, connection: Any, pushes: bool, failure: RequestFailed | None) -> None:
        if self._over:
            if connection is not None:
                disconnect(connection)
            return
        self.give_up()
        if failure is None:
            self._connected(connection, pushes)
        else:
            self._failed(failure)

    def give_up(self) -> None:
        """Close the connection when it comes, and call nothing."""
        self._over = True
        self._engine.forget(self._timer)


def disconnect(connection: Any) -> None:
    try:
        connection.disconnect()
    except Exception:  # nothing can be done, and nothing depends on it
        pass


def _speaks_resp3(sock: socket.socket) -> bool:
    """In the helper thread: whether the server does, from now on."""
    sock.sendall(_HELLO)
    reader = hiredis.Reader(notEnoughData=_MORE)
    while (reply := reader.gets()) is _MORE:
        data = sock.recv(65536)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        reader.feed(data)
    return not isinstance(reply, hiredis.ReplyError)


def _prepare(connection: Any) -> None:
    """Nothing is repeated behind our back; each step has a limit; notices of maintenance would not be read."""
    if hasattr(connection, "retry"):
        with importing:
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        connection.retry = Retry(NoBackoff(), 0)
        connection.maint_notifications_config = None
    for limit in ("socket_connect_timeout", "socket_timeout"):
        if hasattr(connection, limit):
            given = getattr(connection, limit)
            setattr(connection, limit, CONNECT_TIMEOUT_S if given is None else min(given, CONNECT_TIMEOUT_S))
