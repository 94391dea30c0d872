"""Connecting, which may wait: in a short-lived thread of its own, with the user's client library.

Law: the engine never waits for a name server, a handshake, or a credential provider; what connects too late is closed.

Theory: where an address needs no more than TCP or a Unix socket, and a password, the connection is one of our own.
redis-py is only imported where its abilities are needed (TLS, Sentinel, Cluster, options in the URL, a client that the
user brought): importing it takes several times as long as all of `holdfast run`.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import hiredis

from holdfast._core.failure import RequestFailed, refusal
from holdfast._engine.handshake import connection_failed, is_tls, late, unreachable
from holdfast._engine.matching import PUSHES
from holdfast._engine.pack import pack_command
from holdfast._runtime.clock import clock
from holdfast._runtime.handlers import raised_by_handler
from holdfast._runtime.inherited import opened
from holdfast._runtime.lazily import lazily

#: An attempt to connect is given up after this, s.
CONNECT_TIMEOUT_S = 5.0
#: And after this, where no thread can be started for it: meanwhile, the engine renews no lease.
ALONE_TIMEOUT_S = 0.5
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
        except RuntimeError:  # no more threads
            server.dialling.discard(thread)
            self._engine.soon(self._run, ALONE_TIMEOUT_S)

    def _run(self, at_most_s: float = CONNECT_TIMEOUT_S) -> None:
        server, engine = self._server, self._engine
        connection: Any = None
        pushes = closed = False
        try:
            while True:
                connection = server.make()
                server.tls = is_tls(connection)
                _prepare(connection, at_most_s)
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


def _prepare(connection: Any, at_most_s: float) -> None:
    """Nothing is repeated behind our back; each step has a limit; notices of maintenance would not be read."""
    if hasattr(connection, "retry"):
        connection.retry = lazily("redis.retry").Retry(lazily("redis.backoff").NoBackoff(), 0)
        connection.maint_notifications_config = None
    for limit in ("socket_connect_timeout", "socket_timeout"):
        if hasattr(connection, limit):
            given = getattr(connection, limit)
            setattr(connection, limit, at_most_s if given is None else min(given, at_most_s))


class Address(NamedTuple):
    """Where a server is, and who we are to it."""

    host: str
    port: int
    path: str | None
    username: str | None
    password: str | None
    database: int

    @property
    def name(self) -> str:
        """For messages."""
        return self.path if self.path is not None else f"{self.host}:{self.port}"

    @property
    def place(self) -> object:
        """Name what is the same of one and the same server."""
        return self.path or (self.host, self.port)

    def connection(self) -> Connection:
        """A new connection, not yet made."""
        return Connection(self)

    def __repr__(self) -> str:
        return f"<Address {self.name}, database {self.database}>"  # and not the password


class Connection:
    """The connection of a link, made within `socket_timeout`, s, which is called as in redis-py."""

    socket_timeout = CONNECT_TIMEOUT_S

    def __init__(self, address: Address) -> None:
        self._address = address
        self._sock: socket.socket | None = None

    def connect(self) -> None:
        """Connect and introduce ourselves. Raises `RequestFailed`; then nothing of the caller's was sent."""
        self._until = clock() + self.socket_timeout
        try:
            self._sock = self._dial()
            self._introduce(self._sock)
        except BaseException as error:
            self.disconnect()
            if isinstance(error, TimeoutError):
                message, name = f"no answer within {self.socket_timeout:.3g} s", self._address.name
                raise RequestFailed("refused", message, name, maybe_executed=False, transient=True) from None
            if isinstance(error, (OSError, hiredis.ProtocolError)):
                raise unreachable(error, self._address.name) from error
            raise

    def _dial(self) -> socket.socket:
        address = self._address
        places: list[tuple[Any, ...]] = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", address.path)]
        if address.path is None:
            # Bytes need no codec for international names, which takes long to import.
            host: Any = address.host.encode() if address.host.isascii() else address.host
            places = [*socket.getaddrinfo(host, address.port, 0, socket.SOCK_STREAM)]
        refused: OSError | None = None
        for family, kind, protocol, _, where in places:
            sock = opened(family, kind, protocol)
            try:
                sock.settimeout(self._left_s())
                sock.connect(where)
                if address.path is None:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                return sock
            except BaseException as error:
                sock.close()
                if not isinstance(error, OSError) or raised_by_handler(error):
                    raise
                refused = refused or error
        raise refused or OSError("the name has no address")

    def _left_s(self) -> float:
        """How long one step may take. Raises TimeoutError."""
        left_s = self._until - clock()
        if left_s <= 0:
            raise TimeoutError("the time is over")
        return left_s

    def _introduce(self, sock: socket.socket) -> None:
        address = self._address
        commands: list[tuple[Any, ...]] = []
        if address.password is not None:
            # With the user's name the server takes any password where none is set; so does redis-py.
            commands.append(("AUTH", address.username or "default", address.password))
        if address.database:
            commands.append(("SELECT", address.database))
        # A server that takes no more clients says so to whatever comes first, which must not be a lock's request; to
        # one that wants a password a long request is a protocol error, and a short one says what is missing.
        sounding = not commands
        if sounding:
            commands.append(("PING",))
        sock.settimeout(self._left_s())
        sock.sendall(b"".join(map(pack_command, commands)))
        reader = hiredis.Reader()
        for _ in commands:
            while (reply := reader.gets()) is False:
                sock.settimeout(self._left_s())
                data = sock.recv(4096)
                if not data:
                    raise ConnectionResetError("the server closed the connection")
                reader.feed(data)
            if isinstance(reply, hiredis.ReplyError):
                self._refused(str(reply), sounding)

    def _refused(self, said: str, sounding: bool) -> None:
        if "without any password" in said:
            said = f"NOAUTH {said}"
        failure = refusal(said, self._address.name)
        if sounding and failure.kind not in ("MAXCLIENTS", "NOAUTH"):
            return  # PING is not what we came for: the next request says what is wrong, if it matters
        failure.maybe_executed = False
        raise failure

    def disconnect(self) -> None:
        """End it."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()


def address_of_url(url: object) -> Address | None:
    """The address behind a plain `redis://` or `unix://` URL; None when redis-py has to read it."""
    if not isinstance(url, str):
        return None
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        port = parts.port or 6379
    except ValueError:
        return None  # and to complain about it
    if "@" in parts.path and parts.netloc:
        return None
    if parts.scheme not in ("redis", "unix") or not set(options) <= {"db"} or parts.fragment:
        return None
    path = unquote(parts.path) if parts.scheme == "unix" else None
    database = options.get("db") or (parts.path.strip("/") if path is None else "") or "0"
    if not database.isascii() or not database.isdigit() or path == "" or "," in parts.netloc:
        return None
    username = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    if username is not None and password is None:
        return None
    if path is not None and parts.hostname:
        return None
    host = unquote(parts.hostname) if parts.hostname else "localhost"
    return Address(host, port, path, username, password, int(database))
