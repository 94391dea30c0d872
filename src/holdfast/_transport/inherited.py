"""What a forked child inherits and has to let go of: every descriptor of ours, whichever thread uses it in the parent.

Law: the parent's connections hear nothing of it: no goodbye, no TLS alert, no change of what a selector watches.
"""

from __future__ import annotations

import os
import selectors
import weakref
from typing import Any

__all__ = ["let_go", "ours"]

_ours: weakref.WeakSet[Any] = weakref.WeakSet()


def ours(thing: Any) -> None:
    """A socket, a selector, or a connection that keeps its socket in `_sock`."""
    _ours.add(thing)


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
