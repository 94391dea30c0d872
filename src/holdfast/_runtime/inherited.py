"""What a forked child inherits and has to let go of: every descriptor of ours, whichever thread uses it in the parent.

Law: the parent's connections hear nothing of it: no goodbye, no TLS alert, no change of what a selector watches.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
import weakref
from typing import Any

from holdfast._runtime.clock import clock

#: A fork waits this long for sockets that other threads are making, s.
_MADE_S = 0.25

_ours: weakref.WeakSet[Any] = weakref.WeakSet()
#: Which threads are making sockets: each exists before it is registered.
_making: dict[int, int] = {}


def ours(thing: Any) -> None:
    """A socket, a selector, or a connection that keeps its socket in `_sock`."""
    _ours.add(thing)


def opened(family: int, kind: int, protocol: int = 0) -> socket.socket:
    """A new socket, which is ours from the first moment: no fork comes between."""
    key: list[None] = []
    _making[id(key)] = threading.get_ident()
    try:
        sock = socket.socket(family, kind, protocol)
        ours(sock)
        return sock
    finally:
        _making.pop(id(key), None)


def _before_fork() -> None:
    """No lock: the thread that forks may be a signal handler above one that makes a socket."""
    if _making:
        me, until = threading.get_ident(), clock() + _MADE_S
        while any(ident != me for ident in tuple(_making.values())) and clock() < until:
            time.sleep(0.0002)


os.register_at_fork(before=_before_fork, after_in_child=_making.clear)


def let_go() -> None:
    """In the child: close our copies."""
    for thing in tuple(_ours):
        try:
            if isinstance(thing, selectors.BaseSelector):
                thing.close()
                continue
            sock = thing if hasattr(thing, "detach") else getattr(thing, "_sock", None)
            if sock is not None:
                descriptor = sock.detach()
                if descriptor >= 0:
                    os.close(descriptor)
        except Exception:  # it was closed already, or is half made; the next one counts
            pass
    _ours.clear()
