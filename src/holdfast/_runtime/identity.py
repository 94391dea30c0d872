"""Who a thread is: a number that no other thread of this process gets, not even after its end.

`threading.get_ident()` is not that: the system gives it to the next thread when one has ended, and a lease may outlive
the thread that acquired it. Works in threads that Python did not start, and costs as much as `get_ident()`.

Where gevent or eventlet has patched the module threading, a greenlet is a thread in all this.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any


class _Alive:
    """Lives as long as its thread."""

    __slots__ = ("__weakref__",)


class Here:
    """What a thread has of its own."""

    #: Its number.
    number: int


_numbers = itertools.count(1, 2)  # those of tasks are even: one client serves both
_alive: weakref.WeakValueDictionary[int, _Alive] = weakref.WeakValueDictionary()
_made: list[tuple[type[Any], Here]] = []


def here() -> Here:
    """An object whose attributes are those of the calling thread. Another one after monkey patching."""
    local = threading.local
    if not _made or _made[-1][0] is not local:
        _made.append((local, _make(local)))
    return _made[-1][1]


def _make(local: type[Any]) -> Here:
    class Mine(local, Here):  # type: ignore[misc]
        def __init__(self) -> None:
            self.number = next(_numbers)
            self._alive = _alive[self.number] = _Alive()

    made: Here = Mine()
    return made


def has_ended(number: int) -> bool:
    """True if the thread of that number has ended."""
    return number not in _alive
