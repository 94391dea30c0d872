"""Replicas that have to acknowledge a lease before it counts.

Laws: a grant or renewal counts only when as many replicas as are needed have it; "all" is never less than the
replicas that the master has, nor than it had recently, since one that is cut off may still be promoted.

Theory: WAIT follows the script on the same connection. It needs a number, so "all" sends the one that is believed
and INFO behind it, which tells how many there are; when there are more, the request is repeated (every acquire
and renewal can be) with the right number. A master is known by its replication id, which ends with a failover, so
that a former master that is down is not waited for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from holdfast._core.failure import RequestFailed
from holdfast.errors import HoldfastError, InsufficientReplicas

#: What a request asks for: (replicas, timeout_ms), and True to be told about the replicas, too.
SyncTail: TypeAlias = "tuple[int, int] | tuple[int, int, bool]"
#: What a lock wants.
Sync: TypeAlias = "tuple[int, int] | Replicas | None"

#: A replica that is gone is expected to be back for this long, s: Sentinel takes one for fit to be promoted until its
#: link was down for ten times down-after-milliseconds, which is 300 s by default.
_REMEMBERED_S = 600.0
#: Masters that are remembered: the shards of a large Cluster.
_MASTERS_MAX = 1_000
#: How long WAIT waits, ms, but not more than a sixth of the ttl.
_WAIT_MS = 1_000

_CONNECTED = re.compile(rb"connected_slaves:(\d+)")
_REPLICATION_ID = re.compile(rb"master_replid:(\w+)")


class NotAcked(RequestFailed):
    """Too few replicas have it."""

    def __init__(self, name: str, needed: int, acked: int) -> None:
        super().__init__("NOACK", f"{acked} of {needed} replicas acknowledged", "", maybe_executed=True, transient=True)
        self.name = name
        self.needed = needed
        self.acked = acked
        #: Of what; set by the caller that tells the user.
        self.label = "lock"

    def public(self) -> HoldfastError:
        return InsufficientReplicas(self.name, self.needed, self.acked, self.label)


class Replicas:
    """A number of replicas, or all (None). Shared by the locks of a client."""

    __slots__ = ("_believed", "_masters", "refused", "wanted")

    def __init__(self, wanted: int | None) -> None:
        self.wanted = wanted
        #: What a server said that has no WAIT.
        self.refused: RequestFailed | None = None
        self._believed = 1
        self._masters: dict[bytes, tuple[int, float]] = {}

    def tail(self, ttl_ms: int) -> SyncTail:
        """Return what to send behind a request. Raises the trouble of a server that has no WAIT."""
        if self.refused is not None:
            raise self.refused
        wait_ms = max(1, min(_WAIT_MS, ttl_ms // 6))
        return (self.wanted, wait_ms) if self.wanted is not None else (self._believed, wait_ms, True)

    def needed(self, told: bytes, now: float) -> int:
        """Return how many have to acknowledge, by what INFO told."""
        if self.wanted is not None:
            return self.wanted
        connected = _CONNECTED.search(told)
        identity = _REPLICATION_ID.search(told)
        count = int(connected[1]) if connected else 0
        master = identity[1] if identity else b""
        most, seen_at = self._masters.get(master, (0, now))
        if count >= most or now - seen_at > _REMEMBERED_S:
            most, seen_at = count, now
            if len(self._masters) >= _MASTERS_MAX:
                self._masters.clear()
            self._masters[master] = (most, seen_at)
        self._believed = max(1, most)
        return self._believed

    def failed(self, failure: RequestFailed) -> RequestFailed | None:
        """Translate and remember the trouble of a server that has no WAIT; None for any other trouble."""
        said = failure.message.lower()
        if failure.kind in ("ERR", "NOPERM") and "wait" in said and ("unknown command" in said or "permission" in said):
            message = f"{failure.message}: this server forbids WAIT, so sync_replicas is not supported by this server"
            kind = "foreign" if failure.lacks_command else "NOWAIT"
            self.refused = RequestFailed(kind, message, failure.node, maybe_executed=False, transient=False)
            return RequestFailed(kind, message, failure.node, maybe_executed=True, transient=False)
        return None


def judge(sync: tuple[int, int] | Replicas, name: str, answer: Sequence[Any], now: float) -> Any:
    """Return the reply in the answer (reply, acked, what INFO told).

    Raises `NotAcked` when it grants or extends, and too few replicas have it.
    """
    reply, acked, *told = answer
    if (reply if type(reply) is int else reply[0]) > 0:
        needed = sync.needed(told[0] if told else b"", now) if isinstance(sync, Replicas) else sync[0]
        if acked < needed:
            raise NotAcked(name, needed, acked)
    return reply
