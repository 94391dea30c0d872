"""The members of a quorum as a topology."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast._core.failure import RequestFailed
from holdfast._engine.loop import Engine
from holdfast._engine.server import Server

__all__ = ["QuorumTopology"]


class QuorumTopology:
    """Each member has its index. What any server may do (a description for people) goes to the first."""

    #: Whether keys of one script have to share a slot.
    moves = False

    def __init__(self, members: Sequence[Server]) -> None:
        self._members = tuple(members)

    def node_for(self, key: str | None, index: int | None) -> Server:
        return self._members[index or 0]

    def nodes(self) -> Sequence[Server]:
        return self._members

    def troubled(self, node: Server, failure: RequestFailed) -> None:
        pass

    def forget(self, engine: Engine) -> None:
        for member in self._members:
            member.forget(engine)
