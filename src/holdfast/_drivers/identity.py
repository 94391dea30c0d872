"""Who a thread is: a number that no other thread of this process gets, not even after its end.

`threading.get_ident()` is not that: the system gives it to the next thread when one has ended, and a lease may outlive
the thread that acquired it. Works in threads that Python did not start, and costs as much as `get_ident()`.
"""

from __future__ import annotations

import itertools
import threading
import weakref

__all__ = ["has_ended", "here"]


class _Alive:
    """Lives as long as its thread."""

    __slots__ = ("__weakref__",)


_numbers = itertools.count(1)
_alive: weakref.WeakValueDictionary[int, _Alive] = weakref.WeakValueDictionary()


class _Here(threading.local):
    number: int

    def __init__(self) -> None:
        self.number = next(_numbers)
        self._alive = _alive[self.number] = _Alive()


#: `here.number` is the number of the calling thread.
here = _Here()


def has_ended(number: int) -> bool:
    """Whether the thread of that number has ended."""
    return number not in _alive
