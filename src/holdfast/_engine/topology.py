"""The servers of a client, and which of them a key belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast._core.failure import RequestFailed
from holdfast._engine.loop import Engine
from holdfast._engine.matching import MISPLACED
from holdfast._engine.server import Server


class Topology:
    """Servers that stay what they are: one, a Sentinel's master, or the members of a quorum, each by its index."""

    #: Whether keys move from server to server.
    moves = False

    def __init__(self, *servers: Server, fails_over: bool = False) -> None:
        """`fails_over`: Sentinels may name another one for it."""
        self._servers = servers
        self._fails_over = fails_over
        #: The only one; None where one has to be chosen.
        self.only = servers[0] if len(servers) == 1 else None
        #: Called when keys have moved: waiters for a message from their old owner have to look.
        self.on_moved: Callable[[], None] = lambda: None

    def node_for(self, key: str | None, index: int | None) -> Server:
        """The server that owns the key; the `index`-th member of a quorum or master; any when both are None."""
        return self._servers[index or 0]

    def find(self, key: str | None, index: int | None, then: Callable[[Server], None]) -> None:
        """Have `then` called with that server, in a moment where it is about to be found out."""
        then(self.node_for(key, index))

    def nodes(self) -> Sequence[Server]:
        """All servers that are known now."""
        return self._servers

    def masters(self) -> Sequence[Server]:
        """Return those that have keys of their own, as far as is known: members of a quorum have the same ones."""
        return self._servers[:1]

    def redirect(self, node: Server, failure: RequestFailed) -> tuple[Server, bool] | None:
        """Return the server that a refusal leads to, and whether to say ASKING there first; None: nowhere."""
        return None

    def troubled(self, node: Server, failure: RequestFailed) -> None:
        """A request to the server ended so: what is known of the topology may be out of date."""
        # A connection that broke is not used again anyway.
        if self._fails_over and (failure.kind == "silent" or failure.kind in MISPLACED):
            node.reconnect()

    def forget(self, engine: Engine) -> None:
        """After fork, in the child, which has an engine of its own."""
        for node in self.nodes():
            node.forget(engine)
