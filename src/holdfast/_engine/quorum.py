"""The members of a quorum as a topology, for both APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from holdfast._core.failure import RequestFailed

__all__ = ["QuorumTopology"]

N = TypeVar("N")


class QuorumTopology(Generic[N]):
    """Each member has its index. What any node may do (a description for people) goes to the first."""

    #: Whether MOVED and ASK can come, and whether another node can take over.
    moves = False
    fails_over = False

    def __init__(self, members: Sequence[N]) -> None:
        self._members = tuple(members)

    def node_for(self, key: str | None, index: int | None) -> N:
        return self._members[index or 0]

    def nodes(self) -> Sequence[N]:
        return self._members

    def redirect(self, node: N, failure: RequestFailed) -> tuple[N, bool] | None:
        return None

    def troubled(self, node: N, failure: RequestFailed) -> None:
        pass
