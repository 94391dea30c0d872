"""One server, or a Sentinel's master: the topology that has nothing to choose from. For threads and asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from holdfast._core.failure import RequestFailed
from holdfast._engine.limits import MISPLACED

__all__ = ["SingleTopology", "describe"]


class Reconnecting(Protocol):
    """A node, as far as this topology is concerned."""

    def reconnect(self) -> None:
        """Let the next request go on a new connection."""


N = TypeVar("N", bound=Reconnecting)


class SingleTopology(Generic[N]):
    """One node for everything. `fails_over`: Sentinels may name another server for it."""

    __slots__ = ("_node", "_nodes", "fails_over")

    #: Whether MOVED and ASK can come, and keys of one script have to share a slot.
    moves = False

    def __init__(self, node: N, fails_over: bool = False) -> None:
        self._node = node
        self._nodes = (node,)
        self.fails_over = fails_over

    def node_for(self, key: str | None, index: int | None) -> N:
        """The only one."""
        return self._node

    def nodes(self) -> Sequence[N]:
        """The only one."""
        return self._nodes

    def redirect(self, node: N, failure: RequestFailed) -> tuple[N, bool] | None:
        """Nowhere."""
        return None

    def troubled(self, node: N, failure: RequestFailed) -> None:
        """Ask the Sentinels, where it may have failed over. (A connection that broke is not used again anyway.)"""
        if self.fails_over and (failure.kind == "silent" or failure.kind in MISPLACED):
            node.reconnect()


def describe(pool: Any) -> str:
    """host:port, or the socket's path, or the Sentinel's service, for messages."""
    kwargs = pool.connection_kwargs
    service = getattr(pool, "service_name", None)
    if service is not None:
        return f"{service} (through Sentinel)"
    if "path" in kwargs:
        return str(kwargs["path"])
    return f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
