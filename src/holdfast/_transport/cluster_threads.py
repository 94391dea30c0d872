"""A Cluster, for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from holdfast._core.effects import Command
from holdfast._core.failure import RequestFailed
from holdfast._transport.clock import clock
from holdfast._transport.cluster import (
    REFRESH_STAGGER_S,
    REFRESH_TIMEOUT_S,
    REFRESH_TRIES,
    REFRESH_WAIT_S,
    ClusterTopology,
    refuse,
)
from holdfast._transport.threads import Node

__all__ = ["ThreadsCluster"]


class ThreadsCluster(ClusterTopology[Node]):
    """For threads: one that finds the table stale has it read, and waits a moment; the others go on with the old one.

    A thread of its own reads, since the nodes that it asks may hang for longer than a caller's timeout.
    """

    def __init__(self, seeds: Sequence[tuple[str, int]], make: Callable[[str, int], Node]) -> None:
        super().__init__(seeds, make)
        self._place = [None]  # taken by the one that reads
        #: Set when the last reading has ended; and until when it is waited for, while nothing is known of the nodes.
        self._read_done = threading.Event()
        self._waited_until = float("-inf")

    def node_for(self, key: str | None, index: int | None) -> Node:
        if self._stale:
            if (read := self._begin_to_read()) is not None:
                read.wait(REFRESH_WAIT_S)
            elif not self._learned and (left_s := self._waited_until - clock()) > 0:
                self._read_done.wait(left_s)  # another thread has it read
        return super().node_for(key, index)

    def owner_of(self, key: str | None) -> Node:
        """The same for those who must not wait."""
        if self._stale:
            self._begin_to_read()
        return super().node_for(key, None)

    def _refusing(self, node: Node) -> Node:
        return Node(node.name, refuse)

    def _leave(self, node: Node) -> None:
        node.retire()

    def _has_left(self, node: Node) -> bool:
        return not node.in_use()

    def _begin_to_read(self) -> threading.Event | None:
        """Have the table read, if it is time for that: set when that has ended."""
        if not self._due():
            return None
        try:
            self._place.pop()
        except IndexError:
            return None
        read = self._read_done = threading.Event()
        self._waited_until = clock() + REFRESH_WAIT_S
        try:
            threading.Thread(target=self._read_and_tell, args=(read,), name="holdfast-slots", daemon=True).start()
        except RuntimeError:  # no more threads
            self._place.append(None)
            return None
        except BaseException:
            self._place.append(None)
            raise
        return read

    def _read_and_tell(self, read: threading.Event) -> None:
        try:
            self._read()
        finally:
            self._place.append(None)
            read.set()

    def _read(self) -> None:
        """Ask one node after the other, without waiting long for those before, until one has told."""
        self._read_at = clock()
        candidates = self._candidates()[:REFRESH_TRIES]
        left = [None] * len(candidates)
        told = threading.Event()

        def ask(node: Node) -> None:
            try:
                if self._learn(node, node.command(Command(("CLUSTER", "SLOTS"), REFRESH_TIMEOUT_S))):
                    told.set()
            except RequestFailed as failure:
                self._said(node, failure)
            finally:
                left.pop()
                if not left:
                    told.set()

        for node in candidates[:-1]:
            try:
                threading.Thread(target=ask, args=(node,), name="holdfast-slots", daemon=True).start()
            except RuntimeError:  # no more threads
                ask(node)
            if told.wait(REFRESH_STAGGER_S):
                return
        ask(candidates[-1])
        told.wait(2 * REFRESH_TIMEOUT_S)

    def forget(self) -> None:
        """After fork, in the child: another thread may have been reading."""
        self._place = [None]
        self._waited_until = float("-inf")
