"""Which lease a `with` block of a lock object leaves.

One lock object may be entered by many threads or tasks at once, so the leases are kept by who entered. A block that is
left by somebody else than who entered it (an exit stack closed in another thread, an asynchronous fixture) gets its
lease all the same when there is no doubt which one it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Entered"]

L = TypeVar("L")
W = TypeVar("W")


class Entered(Generic[W, L]):
    """Leases of entered blocks, by owner. `ended(owner)` says that an owner can leave nothing any more."""

    __slots__ = ("_ended", "_leases")

    def __init__(self, ended: Callable[[W], bool]) -> None:
        self._ended = ended
        self._leases: dict[W, list[L]] = {}

    def push(self, owner: W, lease: L) -> None:
        """The owner has entered a block."""
        self._leases.setdefault(owner, []).append(lease)

    def pop(self, owner: W) -> L:
        """The owner leaves a block: its innermost one. RuntimeError when nobody can tell which lease that is."""
        if owner not in self._leases:
            owner = self._other()
        leases = self._leases[owner]
        lease = leases.pop()
        if not leases:
            del self._leases[owner]
        return lease

    def _other(self) -> W:
        owners = list(self._leases)
        candidates = owners if len(owners) == 1 else [owner for owner in owners if self._ended(owner)]
        if len(candidates) != 1:
            raise RuntimeError(
                "this block was entered by another thread or task, and several are inside: which lease to release "
                "cannot be told; use `lease = lock.acquire()` and `lease.release()`"
            )
        return candidates[0]
