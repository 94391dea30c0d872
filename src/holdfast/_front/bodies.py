"""Blocks of tasks that run under a lease, and are cancelled when it is lost.

Law: a cancellation from elsewhere is never mistaken for that one, nor swallowed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast._core.record import LeaseRecord

#: Tasks that wait for a client to be closed, and what is to be called when they have.
closers: dict[Any, list[Callable[[], object]]] = {}


class Body:
    """A block that runs under a lease, in a task that is cancelled when the lease is lost.

    `soon` calls something in the loop of the task, from any thread.
    """

    __slots__ = ("_cancelled", "_open", "_soon", "record", "task")

    def __init__(self, task: Any, soon: Callable[..., None], record: LeaseRecord) -> None:
        self.task = task
        self._soon = soon
        self.record = record
        self._cancelled = False
        self._open = True
        self._enter()
        record.blocks += (self,)
        record.on_loss += (self.cancel,)  # not through the lease, which must be free to go
        if record.reason is not None:
            self.cancel("")  # told twice is told once

    def cancel(self, reason: str) -> None:
        """Cancel the block under a lost lease. By the engine, or by a task that has found the loss."""
        if reason != "forked":
            self._soon(self._cancel, reason)

    def _cancel(self, reason: str) -> None:
        if self._open and not self._cancelled:
            later = closers.get(self.task)
            if later is not None:
                # It closes the client, and may do so to the end.
                later.append(partial(self._soon, self._cancel, reason))
            else:
                self._cancelled = True
                self._strike()

    def leave(self, error: BaseException | None) -> bool:
        """End the block, which ended with `error`; returns whether that is our cancellation, and ours alone.

        Raises what is left of a group of errors without our cancellation.
        """
        self._open = False
        record = self.record
        record.blocks = tuple([block for block in record.blocks if block is not self])
        return self._exit(error)

    # -- by the library that runs the task --------------------------------------------------------

    def _enter(self) -> None:
        raise NotImplementedError

    def _strike(self) -> None:
        """Cancel the task."""
        raise NotImplementedError

    def _exit(self, error: BaseException | None) -> bool:
        raise NotImplementedError


def innermost(blocks: list[Body], task: Any) -> Body:
    """Take the innermost block of that task, or else the innermost one."""
    at = next((at for at in reversed(range(len(blocks))) if blocks[at].task is task), -1)
    return blocks.pop(at)
