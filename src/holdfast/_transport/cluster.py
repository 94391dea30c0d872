"""A Cluster: which node owns which slot, in either colour.

Laws: a key's slot is computed as servers do; MOVED and ASK are believed at once; the table is read anew when there is
reason to, from nodes that answer, and not more often than it helps.

Theory: nothing is known at first, and any node answers with MOVED, which is followed; that, and any trouble at a node,
marks the table as stale. How it is read (by whom, and who waits) is the colour's: `ThreadsCluster` reads in the thread
that asks next, `AioCluster` in a task.
"""

from __future__ import annotations

import asyncio
import binascii
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from holdfast._core.effects import Command
from holdfast._core.trouble import Trouble
from holdfast._transport.aio import Server
from holdfast._transport.clock import clock
from holdfast._transport.pack import pack_command
from holdfast._transport.threads import Node

__all__ = ["AioCluster", "ClusterTopology", "ThreadsCluster", "slot_of"]

N = TypeVar("N")

SLOTS = 16_384
#: The table is not read more often than this, s.
REFRESH_EVERY_S = 0.25
#: A node is asked for it for so long, s, and so many nodes at a time.
REFRESH_PATIENCE_S = 1.0
REFRESH_TRIES = 3
#: Trouble that says nothing about who owns what.
_HARMLESS = frozenset({"closed", "OOM", "NOSCRIPT", "BUSY", "NOACK", "NOREPLICAS", "NOPERM"})
#: Computed slots that are kept. Cleared when full.
_SLOTS_KEPT = 10_000

_slots: dict[str, int] = {}


def slot_of(key: str) -> int:
    """The slot of a key: CRC16 of what stands between the first "{" and the next "}", or of the whole key."""
    slot = _slots.get(key)
    if slot is None:
        data = key.encode()
        opened = data.find(b"{")
        if opened >= 0:
            closed = data.find(b"}", opened + 1)
            if closed > opened + 1:
                data = data[opened + 1 : closed]
        slot = binascii.crc_hqx(data, 0) % SLOTS
        if len(_slots) >= _SLOTS_KEPT:
            _slots.clear()
        _slots[key] = slot
    return slot


class ClusterTopology(Generic[N]):
    """The nodes that are known, and the owners of the slots."""

    #: Whether MOVED and ASK can come, and another node can take over.
    moves = True
    fails_over = True

    def __init__(self, seeds: Sequence[tuple[str, int]], make: Callable[[str, int], N]) -> None:
        self._make = make
        self._known: dict[tuple[str, int], N] = {}
        self._seeds = tuple(self._node_at(host, port) for host, port in seeds)
        self._owners: list[N | None] = [None] * SLOTS
        self._suspects: list[N] = []
        self._any = 0
        self._stale = True
        self._read_at = float("-inf")

    def _node_at(self, host: str, port: int) -> N:
        node = self._known.get((host, port))
        if node is None:
            node = self._known.setdefault((host, port), self._make(host, port))
        return node

    def node_for(self, key: str | None, index: int | None) -> N:
        """The owner of the key's slot, as far as is known; else any node, which will know better."""
        owner = None if key is None else self._owners[slot_of(key)]
        return self._anybody() if owner is None else owner

    def _anybody(self) -> N:
        candidates = self._candidates()
        return candidates[self._any % len(candidates)]

    def _candidates(self) -> list[N]:
        """Nodes to ask for the table, those without trouble first."""
        nodes = list(
            dict.fromkeys([*(owner for owner in set(self._owners) if owner is not None), *self._known.values()])
        )
        return [node for node in nodes if node not in self._suspects] + self._suspects

    def nodes(self) -> Sequence[N]:
        return tuple(self._known.values())

    def redirect(self, node: N, trouble: Trouble) -> tuple[N, bool] | None:
        """Where MOVED and ASK lead."""
        words = trouble.said.split(" ")
        if len(words) < 3 or not words[1].isdigit():
            return None
        host, _, port = words[2].rpartition(":")
        if not port.isdigit():
            return None
        if host in ("", "?"):  # it does not know its own address: the one at which we reached it
            host = next((known[0] for known, other in self._known.items() if other is node), "localhost")
        target = self._node_at(host.strip("[]"), int(port))
        if trouble.kind == "ASK":
            return target, True
        self._owners[int(words[1])] = target
        self._outdated()
        return target, False

    def troubled(self, node: N, trouble: Trouble) -> None:
        """A request ended so: the table may be out of date."""
        if trouble.kind in _HARMLESS:
            return
        if trouble.kind in ("refused", "silent", "broken"):
            if node not in self._suspects:
                self._suspects.append(node)
            self._any += 1
        self._outdated()

    def _outdated(self) -> None:
        self._stale = True

    def _due(self) -> bool:
        return self._stale and clock() - self._read_at >= REFRESH_EVERY_S

    def _learn(self, node: N, shares: Any) -> bool:
        """Take over what CLUSTER SLOTS said; whether it made sense."""
        if not isinstance(shares, list) or not shares:
            return False
        own_host = next((known[0] for known, other in self._known.items() if other is node), "localhost")
        owners: list[N | None] = [None] * SLOTS
        for share in shares:
            first, last, (host, port, *_) = share[:3]
            host = (host or b"").decode()
            owner = self._node_at(own_host if host in ("", "?") else host, port)
            for replica in share[3:]:
                address = (replica[0] or b"").decode()
                if address not in ("", "?"):
                    self._node_at(address, replica[1])
            owners[first : last + 1] = [owner] * (last + 1 - first)
        self._owners = owners
        self._suspects = [suspect for suspect in self._suspects if suspect in owners]
        self._stale = False
        return True


class ThreadsCluster(ClusterTopology[Node]):
    """For threads: whoever finds the table stale reads it; the others go on with the old one."""

    def __init__(self, seeds: Sequence[tuple[str, int]], make: Callable[[str, int], Node]) -> None:
        super().__init__(seeds, make)
        self._reading = threading.Lock()

    def node_for(self, key: str | None, index: int | None) -> Node:
        if self._stale and self._due() and self._reading.acquire(blocking=False):
            try:
                self._read()
            finally:
                self._reading.release()
        return super().node_for(key, index)

    def _read(self) -> None:
        self._read_at = clock()
        for node in self._candidates()[:REFRESH_TRIES]:
            try:
                if self._learn(node, node.command(Command(("CLUSTER", "SLOTS"), REFRESH_PATIENCE_S))):
                    return
            except Trouble as trouble:
                if trouble.kind == "closed":
                    return

    def forget(self) -> None:
        """After fork, in the child: another thread may have been reading."""
        self._reading = threading.Lock()


class AioCluster(ClusterTopology[Server]):
    """For asyncio: a task reads the table, and nobody waits for it."""

    def __init__(self, seeds: Sequence[tuple[str, int]], make: Callable[[str, int], Server]) -> None:
        super().__init__(seeds, make)
        self._task: asyncio.Task[None] | None = None

    def _outdated(self) -> None:
        super()._outdated()
        if self._task is None or self._task.done():
            try:
                self._task = asyncio.get_running_loop().create_task(self._read())
            except RuntimeError:
                pass  # no event loop runs: the next one reads it

    async def _read(self) -> None:
        pause_s = self._read_at + REFRESH_EVERY_S - clock()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        self._read_at = clock()
        for server in self._candidates()[:REFRESH_TRIES]:
            try:
                shares = await server.submit(pack_command(("CLUSTER", "SLOTS")), REFRESH_PATIENCE_S)
                if self._learn(server, shares):
                    return
            except Trouble as trouble:
                if trouble.kind == "closed":
                    return

    def end(self) -> asyncio.Task[None] | None:
        """The task that reads, cancelled, if there is one."""
        task, self._task = self._task, None
        if task is None or task.done():
            return None
        task.cancel()
        return task
