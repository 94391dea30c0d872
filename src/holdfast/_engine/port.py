"""What a driver needs of a topology, for both APIs.

A topology knows the nodes (servers) and which of them a key belongs to. Nodes do the talking; what a node looks like
differs between threads and asyncio, so it is a type parameter here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from holdfast._core.failure import RequestFailed

__all__ = ["Topology"]

N = TypeVar("N")


class Topology(Protocol[N]):
    """One server, a Sentinel's master, a Cluster, or the members of a quorum."""

    def node_for(self, key: str | None, index: int | None) -> N:
        """The node that owns the key; the `index`-th member of a quorum or master; any node when both are None."""

    def nodes(self) -> Sequence[N]:
        """All nodes that are known now."""

    def redirect(self, node: N, failure: RequestFailed) -> tuple[N, bool] | None:
        """Return where to go after MOVED (node, False) or ASK (node, True: say ASKING first); None: nowhere else."""

    def troubled(self, node: N, failure: RequestFailed) -> None:
        """A request to the node ended so: what is known of the topology may be out of date."""
