"""A Cluster, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from holdfast._core.failure import RequestFailed
from holdfast._transport.aio import Node, told_already
from holdfast._transport.clock import clock
from holdfast._transport.cluster import (
    REFRESH_EVERY_S,
    REFRESH_STAGGER_S,
    REFRESH_TIMEOUT_S,
    REFRESH_TRIES,
    REFRESH_WAIT_S,
    ClusterTopology,
    refuse,
)
from holdfast._transport.pack import pack_command

__all__ = ["AioCluster"]


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


class AioCluster(ClusterTopology[Node]):
    """For asyncio: a task reads the table; only the first caller waits for it, briefly."""

    def __init__(self, seeds: Sequence[tuple[str, int]], make: Callable[[str, int], Node]) -> None:
        super().__init__(seeds, make)
        self._task: asyncio.Task[None] | None = None

    def _outdated(self) -> None:
        super()._outdated()
        if self._task is None or self._task.done():
            try:
                self._task = asyncio.get_running_loop().create_task(self._read())
                self._task.add_done_callback(told_already)
            except RuntimeError:
                pass  # no event loop runs: the next one reads it

    async def _read(self) -> None:
        pause_s = self._read_at + REFRESH_EVERY_S - clock()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        self._read_at = clock()
        asked: dict[asyncio.Future[Any], Node] = {}
        try:
            for server in self._candidates()[:REFRESH_TRIES]:
                asked[server.submit(pack_command(("CLUSTER", "SLOTS")), REFRESH_TIMEOUT_S)] = server
                if await self._told(asked, REFRESH_STAGGER_S):
                    return
            until = clock() + 2 * REFRESH_TIMEOUT_S
            while asked and (left_s := until - clock()) > 0:
                if await self._told(asked, left_s):
                    return
        except RequestFailed:
            return  # the client is closed
        finally:
            for future in asked:
                future.add_done_callback(_retrieve)

    def _refusing(self, node: Node) -> Node:
        return Node(node.name, refuse)

    def _leave(self, node: Node) -> None:
        node.retire()

    def _has_left(self, node: Node) -> bool:
        return node.gone

    async def _told(self, asked: dict[asyncio.Future[Any], Node], request_timeout_s: float) -> bool:
        """Wait for an answer; True if one has told who owns what."""
        done, _ = await asyncio.wait(asked, timeout=request_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            server = asked.pop(future)
            error = future.exception()
            if error is None and self._learn(server, future.result()):
                return True
            if isinstance(error, RequestFailed):
                self._said(server, error)
        return False

    async def known(self) -> None:
        """Wait a moment for the table when it has never been read: who is asked first may hang."""
        if self._read_at == float("-inf"):
            self._outdated()
        if not self._learned and self._task is not None:
            await asyncio.wait((self._task,), timeout=REFRESH_WAIT_S)

    def end(self) -> asyncio.Task[None] | None:
        """The task that reads, cancelled, if there is one."""
        task, self._task = self._task, None
        if task is None or task.done():
            return None
        task.cancel()
        return task
