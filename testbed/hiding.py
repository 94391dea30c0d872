"""A proxy that keeps subscriptions to itself, as those of services do: its server counts no subscribers.

What is subscribed to is confirmed, and no message ever comes: the server is asked for a channel of another name.
A script without a key is refused, since proxies find a server by it. Everything else passes as it is.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Self

from holdfast import embedded

__all__ = ["HidesSubscribers"]

#: What the inboxes of clients begin with; and what stands for it behind the proxy.
_CHANNEL, _HIDDEN = b"holdfast:inbox:", b"hidden::inbox:#"
_SUBSCRIBES = re.compile(rb"(SUBSCRIBE\r\n\$\d+\r\n)" + _CHANNEL)
#: A script that is given no key: then it is asked for with a number of keys that is refused.
_KEYLESS = re.compile(rb"(EVALSHA\r\n\$40\r\n\w{40}\r\n\$1\r\n)0")


def _hidden(data: bytes) -> bytes:
    return _KEYLESS.sub(rb"\1-", _SUBSCRIBES.sub(rb"\1" + _HIDDEN, data))


class HidesSubscribers:
    """Listens at a port of its own, with a thread for each direction of a connection."""

    def __init__(self, server: embedded.Server) -> None:
        self._target = server.host, server.port
        self._socks: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._socks += [client, server]
                show = partial(re.sub, _HIDDEN, _CHANNEL)
                threading.Thread(target=self._pass, args=(client, server, _hidden), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, show), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with contextlib.suppress(OSError), target:
            while data := source.recv(65536):
                target.sendall(change(data))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listener, *self._socks):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
