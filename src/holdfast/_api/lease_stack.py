"""Which lease a `with` block of a lock object leaves, and which one a candidate resigns.

One object may be entered by many threads or tasks at once, so the leases are kept by owner. A block that
another thread or task leaves than the one that entered it (an exit stack closed in another thread, an asynchronous
fixture) gets its lease all the same when there is no doubt which one it is.

Blocks of one thread need not be left in the reverse order: generators take turns. So each is known by the frame that
runs its `with`, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

L = TypeVar("L")
W = TypeVar("W")


class LeaseStack(list[tuple[W, L, object]]):
    """Leases of entered blocks: the owner of each, the lease, and the frame that runs the `with`, if it is known.

    Changed in one step each, by any thread or task and by finalizers.
    """

    __slots__ = ()

    def take(self, owner: W, frame: object, ended: Callable[[W], bool]) -> L:
        """Take the lease of a block that the owner leaves: that of `frame`, or else its innermost one.

        `ended(owner)` says that an owner can leave nothing any more. RuntimeError when it is ambiguous which one.
        """
        entered = self._find(owner, frame, ended)
        self.remove(entered)
        return entered[1]

    def _find(self, owner: W, frame: object, ended: Callable[[W], bool]) -> tuple[W, L, object]:
        innermost_first = self[::-1]
        of_frame = [each for each in innermost_first if frame is not None and each[2] is frame]
        own = [each for each in of_frame or innermost_first if each[0] == owner]
        if own or of_frame:
            return (own or of_frame)[0]
        owners = {each[0] for each in innermost_first}
        candidates = owners if len(owners) == 1 else set(filter(ended, owners))
        if len(candidates) != 1:
            raise RuntimeError(
                "this block was entered by another thread or task, and several are inside: which lease to release "
                "cannot be told; use `lease = lock.acquire()` and `lease.release()`"
            )
        return next(each for each in innermost_first if each[0] in candidates)

    def forget(self, lease: L) -> None:
        """Forget the innermost block under that lease, in any thread or task."""
        entered = next((each for each in self[::-1] if each[1] is lease), None)
        if entered is not None:
            with suppress(ValueError):  # left meanwhile
                self.remove(entered)


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
