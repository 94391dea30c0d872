"""Releases that are not waited for, with threads: sent at once, answered later.

Laws: an acquire of the same lock by this client comes behind the release on the server; a release without an answer is
sent again; a lease that was not held any more is told as lost; nothing is left to the ttl that would not be if the
caller had waited.

Theory: the connection on which a release was sent still owes its answer. The next acquire of that lock is sent on the
same connection, behind the release, and reads both answers: one round trip for both. If no such acquire comes, the
watchdog reads the answer some time later. The thread that reads it has claimed it, which only one can; an entry stays
until the answer was seen to, so that a thread that ends in between leaves it to the watchdog.
"""

from __future__ import annotations

import threading
import typing
from collections.abc import Sequence
from typing import Any

from holdfast._core.effects import Protocol, Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.fast_path import confirm
from holdfast._core.lease_cache import CachedLease
from holdfast._core.record import LeaseRecord
from holdfast._core.replies import FITS
from holdfast._core.snapshot import snapshot
from holdfast._core.waiting import released
from holdfast._lua import Script
from holdfast._transport.clock import clock
from holdfast._transport.pack import PreparedRequest
from holdfast._transport.pending import PendingReply
from holdfast._transport.port import Topology
from holdfast._transport.threads import Node, Wire
from holdfast._transport.waits import Flag

__all__ = ["LOOK_S", "Unconfirmed"]

#: How long an answer waits for an acquire that reads it, s; then the watchdog does.
LOOK_S = 0.05
#: How long after its time a claimed answer is taken from a thread that has ended, s.
_GRACE_S = 1.0
#: A read has at least this time, s.
_LEAST_S = 0.05


class Driver(typing.Protocol):
    """Whose releases they are."""

    topology: Topology[Node]
    closed: bool

    def owner_of(self, key: str | None, index: int | None) -> Node: ...
    def adopt(self, asked: Sequence[PendingReply]) -> None: ...
    def no_later_than(self, at: float) -> None: ...
    def run(self, protocol: Protocol[None]) -> None: ...
    def spawn(self, protocol: Protocol[None]) -> None: ...


class _Sent:
    """One release, and the connection that owes its answer."""

    __slots__ = ("claimer", "done", "first", "hold", "node", "right", "sent_at", "until", "wire")

    def __init__(self, hold: LeaseRecord | CachedLease, first: PreparedRequest, node: Node, wire: Wire) -> None:
        self.hold = hold
        self.first = first
        self.node = node
        self.wire = wire
        self.sent_at = clock()
        self.until = self.sent_at + first.request_timeout_s
        #: Taken by the one that reads the answer; not there before the request was sent.
        self.right: list[None] = []
        self.claimer: int | None = None
        self.done = Flag()

    def claim(self) -> bool:
        """Claim the answer for this thread to read; True if it may."""
        try:
            self.right.pop()
        except IndexError:
            return False
        self.claimer = threading.get_ident()
        return True


class Unconfirmed:
    """Those of one client, by the key of their lock."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.sent: dict[str, _Sent] = {}

    def __len__(self) -> int:
        return len(self.sent)

    def let_go(self, kept: CachedLease) -> bool:
        """Send the release of what is kept and idle, in the thread that has heard that others want it.

        False when it was not sent: there was no connection at hand.
        """
        first = PreparedRequest(kept.first_release())
        node = self._driver.owner_of(first.key, None)
        # It owes nothing, so that there is room for what is sent: the watchdog does not wait for the server.
        wire = None if self._driver.closed or first.key in self.sent else node.idle()
        return wire is not None and self._send(kept, first, node, wire)

    def send(self, hold: LeaseRecord, first: PreparedRequest) -> bool:
        """Send a release; False when it was not sent, and has to be waited for."""
        driver = self._driver
        node = driver.topology.node_for(first.key, None)
        if driver.closed or first.key in self.sent:
            return False
        try:
            wire = node.take(first.request_timeout_s)
        except RequestFailed:
            return False
        return self._send(hold, first, node, wire)

    def _send(self, hold: LeaseRecord | CachedLease, first: PreparedRequest, node: Node, wire: Wire) -> bool:
        driver = self._driver
        sent = _Sent(hold, first, node, wire)
        try:
            if self.sent.setdefault(first.key, sent) is not sent:
                node.put(wire)
                return False
            wire.begin(first.request_timeout_s)
            wire.sendall(first.packed(hold.token))
            sent.right.append(None)
            driver.no_later_than(sent.sent_at + LOOK_S)
        except BaseException as error:
            failure = node._failed(wire, error, first.request_timeout_s)
            self._forget(sent)
            if failure is None:
                raise
            driver.spawn(confirm(hold, None, failure))
        return True

    def claim(self, key: str | None) -> _Sent | None:
        """Claim the reply that an acquire of this key has to come behind; waits for what another thread reads.

        None: of any key that has something under way; all of that is seen to.
        """
        if key is None:
            for each in snapshot(self.sent.values()):
                self.claim_and_read(each.first.key)
            return None
        sent = self.sent.get(key)
        if sent is None or sent.claim():
            return sent
        # Else it was not sent yet, so that nothing has to come behind it; or this is a signal handler of its reader.
        if sent.claimer is not None and sent.claimer != threading.get_ident():
            sent.done.wait_s(max(0.0, sent.until - clock()))
        return None

    def claim_and_read(self, key: str) -> None:
        """Wait until the release of this key was answered, if there is one."""
        sent = self.claim(key)
        if sent is not None:
            self.read(sent)

    def read(self, sent: _Sent) -> None:
        """Wait for the answer to what was claimed."""
        self._end(sent, self._answer(sent, sent.until - clock()), here=True)

    def exchange(self, sent: _Sent, packed: bytes, request_timeout_s: float, script: Script) -> Reply:
        """Send a request behind what was claimed, and read both answers; returns its own. Raises `RequestFailed`."""
        node, wire = sent.node, sent.wire
        try:
            sent.until = clock() + request_timeout_s
            wire.begin(request_timeout_s)
            wire.sendall(packed)
            answers = wire.read(), wire.read()
            node._checked(wire, answers, (FITS[sent.first.script.name], FITS[script.name]))
            node.put(wire)
        except BaseException as error:
            failure = error if isinstance(error, RequestFailed) else node._failed(wire, error, request_timeout_s)
            self._end(sent, failure or _broken(node), here=failure is not None)
            if failure is None:
                raise
            raise failure from error
        answer, reply = answers
        self._end(sent, answer, here=True)
        if type(answer) is not int or released(answer) is None or isinstance(reply, Exception):
            # It was carried out before the release was: asked again, now that this is over.
            return node.call_packed(packed, request_timeout_s, script)
        return reply

    def look(self) -> None:
        """Have the watchdog read what no acquire has come for; in its thread."""
        now = clock()
        for sent in snapshot(self.sent.values()):
            if now - sent.sent_at >= LOOK_S and sent.claim():
                wire, first = sent.wire, sent.first
                try:
                    wire.patience(0.0)
                except OSError:
                    self._end(sent, _broken(sent.node))
                    continue
                packed = first.packed(sent.hold.token)
                asked = PendingReply(0, first.script, packed, sent.node, wire, self._answered(sent), sent.sent_at)
                asked.failed = self._failed(sent)
                asked.until = sent.until
                self._driver.adopt((asked,))
            elif now > sent.until + _GRACE_S:
                sent.wire.abort()  # its reader has ended, or will find the end
                self._end(sent, _broken(sent.node))

    def finish(self, until: float) -> None:
        """See to all of them: what is not answered by then is repeated in the background."""
        for sent in snapshot(self.sent.values()):
            if sent.claim():
                self._end(sent, self._answer(sent, until - clock()))
            elif sent.claimer == threading.get_ident():
                sent.wire.close()  # an exception has ended its reading, or this is a handler that interrupts it
                self._end(sent, _broken(sent.node))
            elif not sent.done.wait_s(max(0.0, until - clock())):
                sent.wire.abort()
                self._end(sent, _broken(sent.node))

    def forget(self) -> None:
        """After fork, in the child: they are the parent's."""
        for sent in self.sent.values():
            sent.wire.forget()

    def _answered(self, sent: _Sent) -> typing.Callable[[int, Any], None]:
        return lambda _, answer: self._end(sent, answer)

    def _failed(self, sent: _Sent) -> typing.Callable[[RequestFailed], None]:
        return lambda failure: self._end(sent, failure)

    def _answer(self, sent: _Sent, left_s: float) -> Any:
        node, wire = sent.node, sent.wire
        left_s = max(_LEAST_S, left_s)
        try:
            wire.begin(left_s)
            answer = wire.read()
            node._checked(wire, (answer,), (FITS[sent.first.script.name],))
            node.put(wire)
            return answer
        except RequestFailed as failure:
            return failure
        except BaseException as error:
            trouble = node._failed(wire, error, left_s)
            if trouble is None:
                self._end(sent, _broken(node))
                raise
            return trouble

    def _end(self, sent: _Sent, answer: Any, here: bool = False) -> None:
        """Settle a release that was answered, or has failed. `here`: what is left to do is done before this returns."""
        again: Protocol[None] | None = None
        if isinstance(answer, RequestFailed):
            again = confirm(sent.hold, None, answer)
        elif type(answer) is not int:
            again = confirm(sent.hold, None, None)  # an error of the server, which has done nothing
        elif not released(answer):
            again = confirm(sent.hold, answer, None)
        try:
            if again is not None:
                (self._driver.run if here else self._driver.spawn)(again)
        finally:
            self._forget(sent)

    def _forget(self, sent: _Sent) -> None:
        if self.sent.get(sent.first.key) is sent:
            self.sent.pop(sent.first.key, None)
        sent.done.set()


def _broken(node: Node) -> RequestFailed:
    return RequestFailed("broken", "given up", node.name, maybe_executed=True, transient=True)
