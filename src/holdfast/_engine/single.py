"""One server, or a Sentinel's master: the topology that has nothing to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast._core.failure import RequestFailed
from holdfast._engine.limits import MISPLACED
from holdfast._engine.loop import Engine
from holdfast._engine.server import Server

__all__ = ["SingleTopology", "describe"]


class SingleTopology:
    """One server for everything. `fails_over`: Sentinels may name another one for it."""

    #: Whether keys of one script have to share a slot.
    moves = False

    def __init__(self, node: Server, fails_over: bool = False) -> None:
        self.only = node
        self._nodes = (node,)
        self._fails_over = fails_over

    def node_for(self, key: str | None, index: int | None) -> Server:
        """The only one."""
        return self.only

    def nodes(self) -> Sequence[Server]:
        """The only one."""
        return self._nodes

    def troubled(self, node: Server, failure: RequestFailed) -> None:
        """Ask the Sentinels, where it may have failed over. (A connection that broke is not used again anyway.)"""
        if self._fails_over and (failure.kind == "silent" or failure.kind in MISPLACED):
            node.reconnect()

    def forget(self, engine: Engine) -> None:
        """As that of `Topology`."""
        self.only.forget(engine)


def describe(pool: Any) -> str:
    """host:port, or the socket's path, or the Sentinel's service, for messages."""
    kwargs = pool.connection_kwargs
    service = getattr(pool, "service_name", None)
    if service is not None:
        return f"{service} (through Sentinel)"
    if "path" in kwargs:
        return str(kwargs["path"])
    return f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
