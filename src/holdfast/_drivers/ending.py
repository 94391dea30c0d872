"""Ends clients of threads: one, or all of a process side by side.

Laws: a client that ends grants nothing; its waiters are out of the queues before anything is released, so
that no lock is handed to the client itself; holders are told before the lock is released; all of it together takes
no longer than the budget, however many clients, leases and servers that hang.

Theory: first every client is marked as closed, which ends the waiting, and tells the holders. Then what is to be
undone on the servers (give-backs of acquires that had not ended, releases) is driven in this thread, all of it at once:
one connection to each server, pipelined, polled together. No thread is started: at the interpreter's end none can be.
"""

from __future__ import annotations

import heapq
import random
import re
import sys
import threading
import time
import typing
from collections import deque
from collections.abc import Sequence
from types import FrameType
from typing import Any

from holdfast._core.abandon import abandon
from holdfast._core.effects import Call, CallMany, Command, Effect, Now, Protocol, Random, Sleep, Spawn, Unlisten
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord
from holdfast._core.waiting import Acquisition
from holdfast._drivers.identity import Here
from holdfast._drivers.teller import Teller, report
from holdfast._drivers.unconfirmed import Unconfirmed
from holdfast._transport.clock import clock
from holdfast._transport.greenlets import new_poll
from holdfast._transport.pipeline import Pipeline
from holdfast._transport.port import Topology
from holdfast._transport.threads import Node
from holdfast._transport.waits import Flag

__all__ = ["Ends", "end", "run_out"]

#: The owner's number at the end of what stands for it in a token.
_LAST_NUMBER = re.compile(r"(\d+)$")
#: It calls users' functions, which may close a client.
_TELLER = Teller.__module__
#: How long waiters and requests in progress have to end by themselves, s: a round trip and some slack.
_LEAVE_S = 0.25
#: How long callbacks of holders have to return before the locks are released, s.
_TOLD_S = 0.5
#: A server that has been silent for this long is given up, s.
_SILENCE_S = 1.0
#: While servers answer, what they are told takes no longer than this, s.
_RELEASE_MAX_S = 5.0
#: How often it is looked whether a thread has ended its present step, s.
_STEP_S = 0.001
#: After how many steps of protocols the connections are served.
_AT_A_TIME = 256
#: How long background threads have to end, s, all together.
_JOIN_S = 0.25
#: How long a client that has ended may take for what it still has to undo, s.
_AFTERWARDS_S = 1.0


class Ends(typing.Protocol):
    """What is ended: the driver of a client."""

    topology: Topology[Node]
    here: Here
    teller: Teller
    ended: Flag
    closer: int | None
    exiting: bool
    asking: dict[str, Any]
    undone: dict[int, Protocol[None]]
    unreleased: dict[LeaseRecord, None]
    releasing: Unconfirmed

    def begin_end(self) -> bool: ...
    def interrupt_end(self) -> None: ...
    def wake_all(self) -> None: ...
    def lose_all(self, reason: str) -> list[LeaseRecord]: ...
    def busy(self) -> bool: ...
    def cut_off(self) -> None: ...
    def perform(self, effect: Effect[Any]) -> Any: ...
    def chores_left(self, last: bool = False) -> list[tuple[Protocol[None], Effect[Any] | None]]: ...
    def undoes(self) -> bool: ...
    def end_background(self) -> None: ...
    def join_background(self, until: float) -> None: ...


def end(drivers: Sequence[Ends], exiting: bool = False) -> None:
    """Close them all, as the interpreter is `exiting` or not.

    Who is being closed already is waited for, unless by this very thread.
    """
    for driver in drivers:
        driver.exiting = exiting
    begun = _begun_below()
    ours: list[Ends] = []
    try:
        for driver in drivers:
            if driver not in begun and not driver.ended.is_set():
                ours.append(driver)
                if not driver.begin_end():
                    ours.remove(driver)
        if ours:
            _end(ours)
        for driver in ours:
            driver.ended.set()
    except BaseException:
        for driver in ours:
            driver.interrupt_end()
        raise
    others = [driver for driver in drivers if driver not in ours]
    if not others or _interrupts():  # perhaps the very thread that closes them
        return
    for driver in others:
        if driver.closer != threading.get_ident() and not driver.teller.telling:
            driver.ended.wait_s(_LEAVE_S + _TOLD_S + _RELEASE_MAX_S)


def _begun_below() -> list[Ends]:
    """Find what this thread is ending already, if it was interrupted by a signal handler or callback."""
    begun: list[Ends] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code is end.__code__:
            begun += frame.f_locals["drivers"]
        frame = frame.f_back
    return begun


def _end(drivers: list[Ends]) -> None:
    releases: list[tuple[Ends, LeaseRecord]] = []
    for driver in drivers:
        driver.wake_all()
        releases += [(driver, hold) for hold in driver.lose_all("closed")]
    leave_until = clock() + _LEAVE_S
    for driver in drivers:
        driver.releasing.finish(leave_until)
    _let_leave(drivers, leave_until)
    told_until = clock() + _TOLD_S
    for driver in drivers:
        driver.teller.settle(told_until, clock)
    errands = _Errands()
    try:
        for driver in drivers:
            interrupted = list(driver.undone.values())  # when it was to be ended before
            for protocol, effect in driver.chores_left():
                errands.add(driver, protocol, effect)
            for protocol in interrupted:
                errands.resume(driver, protocol)
            for token, asker in list(driver.asking.items()):
                errands.add(driver, asker.give_back() if isinstance(asker, Acquisition) else asker._give_back(token))
        for driver, hold in releases:
            errands.add(driver, hold.release())
    except BaseException:
        errands.leave(interrupted=True)
        raise
    errands.run(drivers, clock() + _RELEASE_MAX_S)
    for driver in drivers:
        for protocol, effect in driver.chores_left(last=True):
            errands.add(driver, protocol, effect)
    errands.run((), clock() + _JOIN_S)
    join_until = clock() + _JOIN_S
    for driver in drivers:
        driver.end_background()
    for driver in drivers:
        driver.join_background(join_until)
        driver.unreleased.clear()


def _let_leave(drivers: Sequence[Ends], until: float) -> None:
    """Acquires end, and requests that are under way; those that do not are cut off."""
    pause_s = 0.0002
    interrupts = _interrupts()
    while any(_asks(driver) or (driver.busy() and not interrupts) for driver in drivers):
        if clock() >= until:
            for driver in drivers:
                driver.cut_off()
            break
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.01)


def _asks(driver: Ends) -> bool:
    """True if another thread than this one has an acquire that has not ended."""
    me = str(driver.here.number)
    return any(_LAST_NUMBER.split(token.split(":")[1])[-2:-1] != [me] for token in list(driver.asking))


def _interrupts() -> bool:
    """True if this is a signal handler, or the like, that has interrupted a request of its own thread."""
    frame: FrameType | None = sys._getframe(1)
    ours = True
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("holdfast."):
            ours = False
        elif not ours and name.startswith(("holdfast._drivers.", "holdfast._transport.")) and name != _TELLER:
            return True
        frame = frame.f_back
    return False


def run_out(driver: Ends, chores: Sequence[tuple[Protocol[None], Effect[Any] | None]]) -> None:
    """Drive what is left to undo when there is no background to do it. Waits, but not for long."""
    errands = _Errands()
    for protocol, effect in chores:
        errands.add(driver, protocol, effect)
    errands.run((), clock() + _AFTERWARDS_S)


class _Errand:
    """A protocol, and the answers to the `CallMany` that it awaits."""

    __slots__ = ("answers", "driver", "effect", "many", "missing", "protocol", "waits")

    def __init__(self, driver: Ends, protocol: Protocol[Any]) -> None:
        self.driver = driver
        self.protocol = protocol
        self.effect: Effect[Any] | None = None
        self.many: CallMany | None = None
        self.answers: list[Any] = []
        self.missing = 0
        #: Grows with each effect, so that an answer that came too late is known.
        self.waits = 0


class _Errands:
    """Protocols that are driven together, by one thread, over connections that do not block."""

    def __init__(self) -> None:
        self._running: set[_Errand] = set()
        self._new: deque[tuple[_Errand, Any, BaseException | None]] = deque()
        self._asleep: list[tuple[float, int, _Errand, int]] = []
        self._numbers = 0
        self._lines: dict[Node, Pipeline] = {}
        self._dead: dict[Node, RequestFailed] = {}
        self._broke: set[Node] = set()
        self._until = 0.0

    def add(self, driver: Ends, protocol: Protocol[Any], effect: Effect[Any] | None = None) -> None:
        """Drive it, too; `effect`: what it waits for already."""
        errand = _Errand(driver, protocol)
        errand.effect = effect
        self._running.add(errand)
        self._new.append((errand, None, None))

    def resume(self, driver: Ends, protocol: Protocol[Any]) -> None:
        """Go on with what was interrupted: it is not known what has come of the request it waits for."""
        if getattr(protocol, "cr_frame", None) is None:
            driver.undone.pop(id(protocol), None)  # it has ended
            return
        errand = _Errand(driver, protocol)
        self._running.add(errand)
        waits = getattr(protocol, "cr_suspended", False)
        self._new.append(
            (
                errand,
                None,
                RequestFailed("broken", "given up", "", maybe_executed=True, transient=True) if waits else None,
            )
        )

    def leave(self, interrupted: bool) -> None:
        """Drive none of them any further; those that were spawned are kept when that is because of an exception."""
        for errand in self._running:
            if not interrupted:
                errand.driver.undone.pop(id(errand.protocol), None)
            if id(errand.protocol) not in errand.driver.undone:
                abandon(errand.protocol)

    def run(self, drivers: Sequence[Ends], until: float) -> None:
        """Run until all have ended; what has not by then is abandoned. Takes what these drivers spawn meanwhile.

        And what their threads are at: a thread ends after its present step, and what sleeps then is taken over.
        """
        self._until = until
        steps_until = clock() + _SILENCE_S
        interrupted = False  # then what is not known from elsewhere is left for the next one who ends its client
        try:
            while True:
                for _ in range(min(len(self._new), _AT_A_TIME)):
                    self._advance(*self._new.popleft())
                for driver in drivers:
                    for protocol, effect in driver.chores_left():
                        self.add(driver, protocol, effect)
                now = clock()
                in_steps = now < steps_until and any(driver.undoes() for driver in drivers)
                if now >= until or not (self._running or in_steps):
                    return
                self._wait(0.0 if self._new else _STEP_S if in_steps else 0.05)
        except BaseException:
            interrupted = True
            raise
        finally:
            self.leave(interrupted)
            for line in self._lines.values():
                line.put_back()
            self._running.clear()
            self._new.clear()
            self._asleep.clear()
            self._lines.clear()

    def _wait(self, wait_s: float) -> None:
        now = clock()
        if self._asleep:
            wait_s = min(wait_s, self._asleep[0][0] - now)
        poll = new_poll()
        lines = [line for line in self._lines.values() if line.owes]
        for line in lines:
            poll.register(line.fd, line.wants)
        ready = {fd for fd, _ in poll.poll(max(0.0, wait_s * 1000))}
        for line in lines:
            if line.fd in ready or line.unsent:  # not everything that polls tells of room to write
                self._answered(line.move(clock()))
        now = clock()
        for node, line in list(self._lines.items()):
            if line.fd < 0:
                del self._lines[node]
                self._broke.add(node)  # what else lies idle there is most likely as old
            elif line.owes and now - line.heard_at > _SILENCE_S:
                said = f"no answer within {_SILENCE_S:g} s"
                self._dead[node] = RequestFailed("silent", said, node.name, maybe_executed=True, transient=False)
                del self._lines[node]
                self._answered(line.end(self._dead[node]))
        while self._asleep and self._asleep[0][0] <= now:
            _, _, errand, waits = heapq.heappop(self._asleep)
            if errand in self._running and errand.waits == waits:
                self._new.append((errand, errand.answers if errand.many is not None else None, None))

    def _answered(self, answers: list[tuple[Any, Call, Any]]) -> None:
        for (errand, waits, index), call, answer in answers:
            self._answer(errand, waits, index, call, answer)

    def _answer(self, errand: _Errand, waits: int, index: int, call: Call, answer: Any) -> None:
        if errand.waits != waits or errand not in self._running:
            return
        if isinstance(answer, RequestFailed):  # an exception of its own for each, since they gather tracebacks
            answer = RequestFailed(
                answer.kind,
                answer.message,
                answer.node,
                maybe_executed=answer.maybe_executed,
                transient=answer.transient,
            )
        if isinstance(answer, RequestFailed) and answer.kind in ("MOVED", "ASK"):
            elsewhere = errand.driver.topology.redirect(self._node_of(errand, call), answer)
            if elsewhere is not None and not elsewhere[1]:
                self._ask(errand, index, call, elsewhere[0])
                return
        if errand.many is None:
            self._new.append(
                (errand, None, answer) if isinstance(answer, RequestFailed) else (errand, answer, None),
            )
            return
        errand.answers[index] = answer
        errand.missing -= 1
        enough = errand.many.enough
        if errand.missing == 0 or (enough is not None and enough(errand.answers)):
            self._new.append((errand, errand.answers, None))
            errand.waits += 1

    def _advance(self, errand: _Errand, value: Any, error: BaseException | None) -> None:
        protocol = errand.protocol
        errand.many = None
        errand.waits += 1
        try:
            while True:
                effect, errand.effect = errand.effect, None
                if effect is None:
                    effect = protocol.send(value) if error is None else protocol.throw(error)
                value = error = None
                if isinstance(effect, Now):
                    value = clock()
                elif isinstance(effect, Random):
                    value = random.random()
                elif isinstance(effect, Spawn):
                    self.add(errand.driver, effect.protocol)
                elif isinstance(effect, Call) and effect.sync is None:
                    self._ask(errand, 0, effect)
                    return
                elif isinstance(effect, CallMany) and all(call.sync is None for call in effect.calls):
                    errand.many = effect
                    errand.answers = [None] * len(effect.calls)
                    errand.missing = len(effect.calls)
                    self._sleep(errand, effect.request_timeout_s)
                    for index, call in enumerate(effect.calls):
                        self._ask(errand, index, call)
                    return
                elif isinstance(effect, Sleep):
                    self._sleep(errand, effect.seconds)
                    return
                elif isinstance(effect, (Call, Command, Unlisten)):
                    try:
                        if not isinstance(effect, Unlisten):
                            effect.request_timeout_s = max(
                                0.05, min(effect.request_timeout_s, self._until - clock(), _SILENCE_S)
                            )
                        value = errand.driver.perform(effect)
                    except RequestFailed as failure:
                        error = failure
                else:
                    error = RequestFailed("closed", "the client is closed", "", maybe_executed=False, transient=False)
        except (StopIteration, RequestFailed):
            pass
        except Exception:
            report()
        self._running.discard(errand)
        errand.driver.undone.pop(id(protocol), None)

    def _sleep(self, errand: _Errand, seconds: float) -> None:
        self._numbers += 1
        heapq.heappush(self._asleep, (clock() + seconds, self._numbers, errand, errand.waits))

    def _node_of(self, errand: _Errand, call: Call) -> Node:
        return errand.driver.topology.node_for(call.keys[0], call.node)

    def _ask(self, errand: _Errand, index: int, call: Call, node: Node | None = None) -> None:
        try:
            if node is None:
                node = self._node_of(errand, call)
            if not node.pipelines:
                self._answer(errand, errand.waits, index, call, node.call(call))
                return
            line = self._line(node)
        except RequestFailed as failure:
            self._answer(errand, errand.waits, index, call, failure)
        else:
            line.submit((errand, errand.waits, index), call)

    def _line(self, node: Node) -> Pipeline:
        line = self._lines.get(node)
        if line is not None and line.fd >= 0:
            return line
        if node in self._dead:
            raise self._dead[node].with_traceback(None)
        wire = node.idle() if line is None and node not in self._broke else None
        if wire is None:
            # The only step that waits for one server alone: others may have to be told, too.
            left_s = self._until - clock()
            try:
                wire = node.connect(max(0.05, min(_SILENCE_S, left_s / 2)), last=True)
            except RequestFailed as failure:
                self._dead[node] = failure
                failure.transient = False
                raise
        line = self._lines[node] = Pipeline(node, wire, clock())
        return line
