"""One request under way on a connection that does not block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hiredis

from holdfast._core.effects import Answer, Protocol
from holdfast._core.failure import RequestFailed
from holdfast._core.replies import FITS, Fits, expected_of, nonsense
from holdfast._lua import Script
from holdfast._transport.handlers import raised_by_handler
from holdfast._transport.pack import spelled_out
from holdfast._transport.pushes import Push
from holdfast._transport.threads import Node, Wire

__all__ = ["PendingReply"]


class PendingReply:
    """One request under way on one connection."""

    __slots__ = ("failed", "index", "late", "loaded", "node", "packed", "script", "sent_at", "until", "wire")

    def __init__(
        self,
        index: int,
        script: Script,
        packed: bytes,
        node: Node,
        wire: Wire,
        late: Callable[[int, Any], Protocol[None] | None] | None,
        sent_at: float,
    ) -> None:
        self.index = index
        self.script = script
        self.packed = packed
        self.node = node
        self.wire = wire
        self.late = late
        #: Told of the trouble that it ends with, if it does.
        self.failed: Callable[[RequestFailed], None] | None = None
        self.loaded = False
        self.sent_at = sent_at
        self.until = 0.0

    def read(self) -> Answer:
        """Read the answer that has come by now, or None. The connection is idle again, or closed, after an answer."""
        wire = self.wire
        try:
            replies = [reply for reply in wire.read_ready() if type(reply) is not Push]
            while replies:
                reply = replies.pop(0)
                if replies or wire.has_more():
                    return self._nonsense("more than one reply", None)
                if type(reply) is hiredis.ReplyError:
                    if str(reply).startswith("NOSCRIPT") and not self.loaded:
                        self.loaded = True  # once is enough
                        wire.sendall(spelled_out(self.packed, self.script))
                        continue
                    reply = self.node.refused(reply)
                elif not FITS[self.script.name](reply):
                    return self._nonsense(repr(reply), FITS[self.script.name])
                self.node.put(wire)
                return reply
        except OSError as error:
            if raised_by_handler(error):
                raise
            wire.close()
            self.node.drop_idle()
            return RequestFailed("broken", str(error), self.node.name, maybe_executed=True, transient=True)
        return None

    def _nonsense(self, said: str, fits: Fits | None) -> RequestFailed:
        self.wire.close()
        self.node.drop_idle()
        return nonsense(said, expected_of(fits), self.node.name)
