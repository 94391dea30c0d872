"""Many requests on one non-blocking connection, for callers with little time and much to send.

Laws: replies are matched to requests in order; a connection on which something went wrong is closed, and what it owes
is answered with that trouble.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Hashable
from typing import Any

import hiredis

from holdfast._core.effects import Call
from holdfast._core.failure import RequestFailed
from holdfast._core.replies import FITS, expected_of, nonsense
from holdfast._lua import SCRIPTS
from holdfast._transport.clock import clock
from holdfast._transport.handlers import raised_by_handler
from holdfast._transport.pack import pack_command, pack_script
from holdfast._transport.pushes import Push
from holdfast._transport.threads import Node, Wire, would_block

__all__ = ["Pipeline"]

#: So much is handed to the system at a time, bytes.
_CHUNK = 256 * 1024


class Pipeline:
    """`submit` calls, poll `fd` for `wants`, then `move`, which returns what was answered."""

    __slots__ = ("_out", "_owed", "_part", "heard_at", "node", "wire")

    def __init__(self, node: Node, wire: Wire, now: float) -> None:
        self.node = node
        self.wire = wire
        self.heard_at = now
        self._owed: deque[tuple[Hashable, Call, bool]] = deque()
        self._out: deque[bytes] = deque()
        self._part = memoryview(b"")
        wire.patience(0.0)

    @property
    def fd(self) -> int:
        """To poll; -1 when it is closed."""
        return self.wire.sock.fileno()

    @property
    def wants(self) -> int:
        """The events to poll for."""
        return select.POLLIN | select.POLLOUT if self.unsent else select.POLLIN

    @property
    def unsent(self) -> bool:
        """Whether something waits for room to be written."""
        return bool(self._part) or bool(self._out)

    @property
    def owes(self) -> int:
        """How many answers have not come yet."""
        return len(self._owed)

    def submit(self, key: Hashable, call: Call) -> None:
        """Ask; `move` returns the answer beside `key`."""
        if not self._owed:
            self.heard_at = clock()  # it owed nothing until now
        self._owed.append((key, call, False))
        self._out.append(pack_script(SCRIPTS[call.script], call.keys, call.args))

    def _spell_out(self, key: Hashable, call: Call) -> None:
        """The server does not know the script (any more): load and run it in one go."""
        self._owed.append((key, call, True))
        self._out.append(pack_command(("EVAL", SCRIPTS[call.script].text, str(len(call.keys)), *call.keys, *call.args)))

    def move(self, now: float) -> list[tuple[Hashable, Call, Any]]:
        """Send and read what can be without waiting; answers are replies, or `RequestFailed`."""
        answers: list[tuple[Hashable, Call, Any]] = []
        try:
            self._send()
            for reply in self.wire.read_ready():
                if type(reply) is Push:
                    continue
                self.heard_at = now
                if not self._owed:
                    return [*answers, *self.end(nonsense("more than one reply", expected_of(None), self.node.name))]
                key, call, spelled_out = self._owed.popleft()
                if type(reply) is hiredis.ReplyError:
                    if str(reply).startswith("NOSCRIPT") and not spelled_out:
                        self._spell_out(key, call)
                        continue
                    reply = self.node.refused(reply)
                elif not FITS[call.script](reply):
                    failure = nonsense(repr(reply), expected_of(FITS[call.script]), self.node.name)
                    return [*answers, (key, call, failure), *self.end(failure)]
                answers.append((key, call, reply))
            self._send()
        except (OSError, ValueError) as error:
            if raised_by_handler(error):
                raise
            answers += self.end(
                RequestFailed("broken", str(error), self.node.name, maybe_executed=True, transient=True)
            )
        return answers

    def _send(self) -> None:
        while self._part or self._out:
            if not self._part:
                size, some = 0, []
                while self._out and size < _CHUNK:
                    some.append(self._out.popleft())
                    size += len(some[-1])
                self._part = memoryview(b"".join(some))
            try:
                sent = self.wire.sock.send(self._part)
            except OSError as error:
                if raised_by_handler(error) or not would_block(error):
                    raise
                return
            self._part = self._part[sent:]

    def end(self, failure: RequestFailed) -> list[tuple[Hashable, Call, Any]]:
        """Close the connection; what it owes is answered with this trouble."""
        self.wire.close()
        owed, self._owed = self._owed, deque()
        self._out.clear()
        self._part = memoryview(b"")
        return [(key, call, failure) for key, call, _ in owed]

    def put_back(self) -> None:
        """Nothing is owed: others may have the connection; else it is closed."""
        if self._owed or self._part or self._out:
            self.wire.close()
        else:
            self.node.put(self.wire)
