"""Blocks of asyncio that run under a lease, and are cancelled when it is lost.

Law: a cancellation from elsewhere is never mistaken for that one, nor swallowed.
"""

from __future__ import annotations

import asyncio
from asyncio import current_task
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast._core.record import LeaseRecord, tell

__all__ = ["Body", "closers", "innermost"]

#: Tasks that wait for a client to be closed, and what is to be called when they have.
closers: dict[asyncio.Task[Any], list[Callable[[], object]]] = {}


class Body:
    """A block that runs under a lease, in a task that is cancelled when the lease is lost.

    `soon` calls something in the loop of the task, from any thread.
    """

    __slots__ = ("_cancelled", "_cancelling", "_open", "_soon", "record", "task")

    def __init__(self, task: asyncio.Task[Any], soon: Callable[..., None], record: LeaseRecord) -> None:
        self.task = task
        self._soon = soon
        self.record = record
        record.blocks += (self,)
        self._cancelling = task.cancelling()
        self._cancelled = False
        self._open = True
        if record.reason is not None:
            self.cancel("")
        else:
            tell(record, self.cancel)  # not through the lease, which must be free to go

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
                self.task.cancel("the lease is lost")

    def leave(self) -> bool:
        """End the block; returns whether a cancellation that comes out of it is ours alone."""
        self._open = False
        record = self.record
        record.blocks = tuple([block for block in record.blocks if block is not self])
        return self._cancelled and self.task.uncancel() <= self._cancelling


def innermost(blocks: list[Body] | None) -> Body:
    """Take the innermost block of the running task, or else the innermost one."""
    assert blocks
    task = current_task()
    at = next((at for at in reversed(range(len(blocks))) if blocks[at].task is task), -1)
    return blocks.pop(at)
