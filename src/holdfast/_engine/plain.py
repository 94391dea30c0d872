"""Connections of our own to one server, for addresses that need no more than that: TCP or a Unix socket, a password.

redis-py is only imported where its abilities are needed (TLS, Sentinel, Cluster, options in the URL, a client that
the user brought): importing it takes several times as long as all of `holdfast run`.
"""

from __future__ import annotations

import socket
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import hiredis

from holdfast._core.failure import RequestFailed, refusal
from holdfast._engine.dial import CONNECT_TIMEOUT_S
from holdfast._engine.handshake import unreachable
from holdfast._engine.pack import pack_command
from holdfast._runtime.clock import clock
from holdfast._runtime.handlers import raised_by_handler
from holdfast._runtime.inherited import opened


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
    """What a link needs of a connection, made within `timeout_s`."""

    timeout_s = CONNECT_TIMEOUT_S

    def __init__(self, address: Address) -> None:
        self._address = address
        self._sock: socket.socket | None = None

    def connect(self) -> None:
        """Connect and introduce ourselves. Raises `RequestFailed`; then nothing of the caller's was sent."""
        self._until = clock() + self.timeout_s
        try:
            self._sock = self._dial()
            self._introduce(self._sock)
        except BaseException as error:
            self.disconnect()
            if isinstance(error, TimeoutError):
                message, name = f"no answer within {self.timeout_s:.3g} s", self._address.name
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
