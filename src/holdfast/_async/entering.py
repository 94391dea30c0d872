"""What `async with` enters: it acquires a lease, runs the block under it, and leaves."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast._api.lease_stack import Leads, LeaseStack
from holdfast._api.leaving import AsyncLeaving, Block, opening
from holdfast._async.lease import Lease
from holdfast._async.lifecycle import Session

L = TypeVar("L", bound=Lease)


class Enterable(Generic[L]):
    """A context manager that holds a lease inside its block, for any number of tasks at a time."""

    _session: Session
    #: Who is inside, by which lease, where no `with` statement knows it.
    _entered: LeaseStack[Any, L]
    #: Who leads inside of a block, where it is one of an election.
    _leads: Leads[Any, L] | None = None

    def _acquire(self, frame: FrameType) -> Awaitable[L]:
        """Acquire what the block runs under, for that frame."""
        raise NotImplementedError

    async def __aenter__(self) -> L:
        block = opening(self)
        is_known = block is not None
        if block is None:
            block = []
        try:
            block.append(await self._acquire(sys._getframe(1)))
            if self._leads is not None:
                self._leads.won(self._session.me(), block[0])
            if not is_known:  # its end has to find it
                self._entered.append((self._session.me(), block[0], sys._getframe(1)))
            # sync-drop
            block[0]._begin_body()
            return block[0]  # type: ignore[no-any-return]
        except BaseException:
            if block:
                lease, block[0] = block[0], None
                self._not_left(lease)
            raise

    def _leave(self, block: Block, *raised: Any) -> Awaitable[None]:
        if not block or block[0] is None:
            # Not looked up by `with`: whose block it is has to be found, by the frame that awaits this.
            # sync: lease = self._entered.take(self._session.me(), sys._getframe(1), self._session.has_ended)
            # sync: if self._leads is not None:
            # sync:     self._leads.forget(lease)
            # sync: return lease._exit(*raised)
            return self._exit(*raised)
        if self._leads is not None:
            self._leads.forget(block[0])
        return block[0]._leave(block, *raised)  # type: ignore[no-any-return]

    async def _exit(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = self._entered.take(self._session.me(), sys._getframe(1), self._session.has_ended)
        if self._leads is not None:
            self._leads.forget(lease)
        await lease._exit(kind, error, trace)

    if TYPE_CHECKING:
        __aexit__ = _exit
    else:
        __aexit__ = AsyncLeaving(_leave, _exit)

    def _not_entered(self) -> None:
        pass  # what `__aenter__` had acquired it has given back

    def _not_left(self, lease: L) -> None:
        self._entered.forget(lease)
        if self._leads is not None:
            self._leads.forget(lease)
        lease._abandon()
