"""Which lease a `with` block of a lock object leaves, and which one a candidate resigns.

One object may be entered by many threads or tasks at once, so the leases are kept by owner. A block that
another thread or task leaves than the one that entered it (an exit stack closed in another thread, an asynchronous
fixture) gets its lease all the same when there is no doubt which one it is.

Blocks of one thread need not be left in the reverse order: generators take turns. So each is known by the frame that
runs its `with`, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Leads", "LeaseStack"]

L = TypeVar("L")
W = TypeVar("W")


class LeaseStack(Generic[W, L]):
    """Leases of entered blocks, by owner. `ended(owner)` says that an owner can leave nothing any more."""

    __slots__ = ("_ended", "_leases")

    def __init__(self, ended: Callable[[W], bool]) -> None:
        self._ended = ended
        self._leases: dict[W, list[tuple[L, object]]] = {}

    def push(self, owner: W, lease: L, frame: object = None) -> None:
        """Note that the owner has entered a block. `frame`: which one runs the `with`, if it is known."""
        self._leases.setdefault(owner, []).append((lease, frame))

    def pop(self, owner: W, frame: object = None) -> L:
        """Take the lease of a block that the owner leaves: that of `frame`, or else its innermost one.

        RuntimeError when it is ambiguous which lease that is.
        """
        owner, at = self._find(owner, frame)
        own = self._leases[owner]
        lease, _ = own.pop(at)
        if not own:
            del self._leases[owner]
        return lease

    def _find(self, owner: W, frame: object) -> tuple[W, int]:
        if frame is not None:
            for each in (owner, *tuple(self._leases)):
                for at, (_, entered_in) in reversed([*enumerate(self._leases.get(each, ()))]):
                    if entered_in is frame:
                        return each, at
        return (owner if owner in self._leases else self._other()), -1

    def forget(self, lease: L) -> None:
        """Forget the lease, in any thread or task. Takes no lock: finalizers may call it."""
        for owner, entries in tuple(self._leases.items()):
            for at, (entered, _) in reversed([*enumerate(entries)]):
                if entered is lease:
                    del entries[at]
                    if not entries:
                        self._leases.pop(owner, None)
                    return

    def _other(self) -> W:
        owners = list(self._leases)
        candidates = owners if len(owners) == 1 else [owner for owner in owners if self._ended(owner)]
        if len(candidates) != 1:
            raise RuntimeError(
                "this block was entered by another thread or task, and several are inside: which lease to release "
                "cannot be told; use `lease = lock.acquire()` and `lease.release()`"
            )
        return candidates[0]


class Leads(Generic[W, L]):
    """Leases of an election object, by candidate. `over(lease)` says that a lease has ended.

    A candidate that has lost and has not resigned yet does not see, nor end, the lead of another one.
    """

    __slots__ = ("_ended", "_leases", "_over")

    def __init__(self, ended: Callable[[W], bool], over: Callable[[L], bool]) -> None:
        self._ended = ended
        self._over = over
        self._leases: dict[W, L] = {}

    def won(self, owner: W, lease: L) -> None:
        for other, old in tuple(self._leases.items()):
            if self._ended(other) and self._over(old):
                self._leases.pop(other, None)
        self._leases[owner] = lease

    def own(self, owner: W) -> L | None:
        """Return the lease by which the owner was elected last."""
        return self._leases.get(owner)

    def of(self, owner: W) -> L | None:
        """The owner's own lease, lost or not; for others the one that leads now, or else the last one."""
        own = self._leases.get(owner)
        if own is not None:
            return own
        leases = tuple(self._leases.values())
        return next((lease for lease in leases if not self._over(lease)), leases[-1] if leases else None)

    def forget(self, lease: L) -> None:
        for owner, known in tuple(self._leases.items()):
            if known is lease:
                self._leases.pop(owner, None)
