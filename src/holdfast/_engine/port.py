"""What a client needs of a topology: the servers, and which of them a key belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast._core.failure import RequestFailed
from holdfast._engine.loop import Engine
from holdfast._engine.server import Server

__all__ = ["Topology"]


class Topology(Protocol):
    """One server, a Sentinel's master, a Cluster, or the members of a quorum."""

    #: Whether keys move from server to server.
    moves: bool

    def node_for(self, key: str | None, index: int | None) -> Server:
        """The server that owns the key; the `index`-th member of a quorum or master; any when both are None."""

    def nodes(self) -> Sequence[Server]:
        """All servers that are known now."""

    def troubled(self, node: Server, failure: RequestFailed) -> None:
        """A request to the server ended so: what is known of the topology may be out of date."""

    def forget(self, engine: Engine) -> None:
        """After fork, in the child, which has an engine of its own."""
