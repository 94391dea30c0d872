"""The topologies whose servers stay what they are: one server, or a Sentinel's master, and the members of a quorum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast._core.failure import RequestFailed
from holdfast._engine.loop import Engine
from holdfast._engine.matching import MISPLACED
from holdfast._engine.server import Server

__all__ = ["QuorumTopology", "SingleTopology", "describe"]


class SingleTopology:
    """One server for everything. `fails_over`: Sentinels may name another one for it."""

    #: Whether keys of one script have to share a slot.
    moves = False

    def __init__(self, node: Server, fails_over: bool = False) -> None:
        #: The only one; None where one has to be chosen.
        self.only: Server | None = node
        self._nodes: tuple[Server, ...] = (node,)
        self._fails_over = fails_over

    def node_for(self, key: str | None, index: int | None) -> Server:
        """The only one."""
        return self._nodes[0]

    def nodes(self) -> Sequence[Server]:
        """All of them."""
        return self._nodes

    def troubled(self, node: Server, failure: RequestFailed) -> None:
        """Ask the Sentinels, where it may have failed over. (A connection that broke is not used again anyway.)"""
        if self._fails_over and (failure.kind == "silent" or failure.kind in MISPLACED):
            node.reconnect()

    def forget(self, engine: Engine) -> None:
        """As that of `Topology`."""
        for node in self._nodes:
            node.forget(engine)


class QuorumTopology(SingleTopology):
    """Each member has its index. What any server may do (a description for people) goes to the first."""

    def __init__(self, members: Sequence[Server]) -> None:
        super().__init__(members[0])
        self.only, self._nodes = None, tuple(members)

    def node_for(self, key: str | None, index: int | None) -> Server:
        """The member of that index."""
        return self._nodes[index or 0]


def describe(pool: Any) -> str:
    """host:port, or the socket's path, or the Sentinel's service, for messages."""
    kwargs = pool.connection_kwargs
    service = getattr(pool, "service_name", None)
    if service is not None:
        return f"{service} (through Sentinel)"
    if "path" in kwargs:
        return str(kwargs["path"])
    return f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
