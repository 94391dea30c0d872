"""Connecting in time, whatever the client library does meanwhile.

A handshake is many steps (names, addresses, TLS, Sentinels, users), each with a limit of its own or none. It is made in
a thread that is left to itself when the time is over: what it brings then is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast._transport.clock import clock
from holdfast._transport.waits import Mailbox

__all__ = ["LATE_MAX", "Attempts"]

T = TypeVar("T")

#: Attempts to reach one server that hang and are not waited for any more: beyond that none is begun.
LATE_MAX = 32


class Attempts(Generic[T]):
    """Attempts to make one kind of connection. `close` ends one that came too late."""

    __slots__ = ("_close", "_late")

    def __init__(self, close: Callable[[T], object]) -> None:
        self._close = close
        self._late: dict[int, threading.Thread] = {}

    def make(self, make: Callable[[], T], request_timeout_s: float) -> T | None:
        """Return what `make()` returns, or None when that takes longer. Raises what it raises."""
        if len(self._late) >= LATE_MAX:
            for ident, other in list(self._late.items()):
                if not other.is_alive():
                    self._late.pop(ident, None)
            if len(self._late) >= LATE_MAX:
                return None
        until = clock() + request_timeout_s
        came: Mailbox[tuple[T | None, BaseException | None]] = Mailbox()

        def run() -> None:
            try:
                came.put((make(), None))
            except BaseException as error:
                came.put((None, error))
            finally:
                if self._late.pop(id(thread), None) is not None:
                    self._drop(came)

        thread = threading.Thread(target=run, name="holdfast-connect", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads: then its own limits have to do
            return make()
        result = None
        try:
            result = came.get(max(0.0, until - clock()))
        finally:
            if result is None:
                self._late[id(thread)] = thread
                self._drop(came)  # if it came at this moment
        if result is None:
            return None
        made, error = result
        if error is not None:
            raise error
        return made

    def _drop(self, came: Mailbox[tuple[T | None, BaseException | None]]) -> None:
        late = came.get(0.0)
        if late is not None and late[0] is not None:
            self._close(late[0])
