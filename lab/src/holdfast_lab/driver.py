"""Runs a scheme on real servers: blocking sockets, one at a time, and no hidden second try.

Law: what a scheme sends is what the server gets, once; an error reaches the scheme. A connection that failed is
never used again.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

import hiredis

from holdfast_lab.effects import Command, Effect, Now, Random, RequestFailed, Sleep

__all__ = ["Address", "BlockingDriver"]

Address: TypeAlias = tuple[str, int]
R = TypeVar("R")


class _Connection:
    def __init__(self, address: Address, request_timeout_s: float, password: str) -> None:
        self.socket = socket.create_connection(address, timeout=request_timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = hiredis.Reader()
        #: Sent in front of the first command, so that this costs no round trip of its own.
        words: tuple[Any, ...] = ("AUTH", password)
        self._first = hiredis.pack_command(words) if password else b""

    def ask(self, args: Sequence[Any], request_timeout_s: float) -> Any:
        deadline = time.monotonic() + request_timeout_s
        self.socket.settimeout(request_timeout_s)
        first, self._first = self._first, b""
        self.socket.sendall(first + hiredis.pack_command(tuple(args)))
        if first and isinstance(refused := self._answer(deadline), hiredis.ReplyError):
            return refused
        return self._answer(deadline)

    def _answer(self, deadline: float) -> Any:
        while True:
            reply = self.reader.gets()
            if reply is not False:
                return reply
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self.reader.feed(data)

    def close(self) -> None:
        self.socket.close()


class BlockingDriver:
    """Performs the effects of one client.

    Args:
        addresses: one (host, port) per server; `node` of a command is the index.
        interrupt: called before every pause; may raise to end a protocol that waits.
        password: of the servers; "" where they have none.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        interrupt: Callable[[], None] | None = None,
        password: str = "",
    ) -> None:
        self._password = password
        self._addresses = list(addresses)
        self._interrupt = interrupt
        self._connections: dict[tuple[int, str | None], _Connection] = {}

    def run(self, protocol: Coroutine[Effect[Any], Any, R]) -> R:
        """Drive a protocol to its end; an error of an effect is raised inside it."""
        result: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = protocol.send(result) if error is None else protocol.throw(error)
            except StopIteration as end:
                returned: R = end.value
                return returned
            result, error = None, None
            try:
                result = self._perform(effect)
            except BaseException as raised:
                error = raised

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _perform(self, effect: Effect[Any]) -> Any:
        match effect:
            case Command():
                return self._command(effect)
            case Sleep():
                if self._interrupt is not None:
                    self._interrupt()
                time.sleep(effect.seconds)
                return None
            case Now():
                return time.time()  # the wall clock, as in the listings; the lab sets it ahead in some processes
            case Random():
                return random.SystemRandom().random()
        raise TypeError(f"the lab does not know the effect {type(effect).__name__}")

    def _command(self, effect: Command) -> Any:
        where = (effect.node, effect.session)
        connection = self._connections.pop(where, None)
        if connection is None:
            try:
                connection = _Connection(self._addresses[effect.node], effect.request_timeout_s, self._password)
            except OSError as error:
                raise RequestFailed("refused", str(error)) from error
        try:
            reply = connection.ask(effect.args, effect.request_timeout_s)
        except TimeoutError as error:
            connection.close()
            said = f"no answer to {effect.args[0]!s} within {effect.request_timeout_s:g} s"
            raise RequestFailed("silent", said) from error
        except OSError as error:
            connection.close()
            raise RequestFailed("broken", str(error)) from error
        except BaseException:
            connection.close()
            raise
        self._connections[where] = connection
        if isinstance(reply, hiredis.ReplyError):
            raise RequestFailed(str(reply).partition(" ")[0], str(reply))
        return reply
