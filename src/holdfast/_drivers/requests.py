"""Requests of protocols in threads, to the node that has their keys.

Laws: MOVED and ASK are followed within the time of one request; a request that is cancelled takes its connection along;
the commands of a session have one connection, which nothing else uses.

Theory: the calling thread takes a connection, sends, and reads the reply. Requests for several servers go out together
(`many.py`). As `requests_aio.py` for event loops.
"""

from __future__ import annotations

import threading
import typing
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast._core.effects import Answer, Call, CallMany, Command
from holdfast._core.failure import RequestFailed
from holdfast._drivers.cancel import Cancel, Cancelled
from holdfast._drivers.inboxes import Inboxes
from holdfast._drivers.many import Dialler, ask_all
from holdfast._drivers.observing import Troubles
from holdfast._transport.clock import clock
from holdfast._transport.limits import GONE, REDIRECTS_MAX, redirect_timeout_s
from holdfast._transport.pending import PendingReply
from holdfast._transport.port import Topology
from holdfast._transport.threads import Node, Wire

__all__ = ["Requests"]


class Driver(typing.Protocol):
    """Whose requests they are."""

    inboxes: Inboxes
    troubles: Troubles

    def adopt(self, asked: Sequence[PendingReply]) -> None: ...


class Requests:
    """Sends those of one client."""

    def __init__(self, driver: Driver, topology: Topology[Node]) -> None:
        self._driver = driver
        self.topology = topology
        self._moves: bool = getattr(topology, "moves", True)  # whether MOVED and ASK can come
        self._fails_over: bool = getattr(topology, "fails_over", False)
        self.forget()

    def forget(self) -> None:
        """After a fork, in the child."""
        self._sessions: dict[str, Wire] = {}
        self._diallers: dict[Node, Dialler] = {}

    @property
    def is_dialling(self) -> bool:
        """Whether a server was dialled by a thread of its own."""
        return bool(self._diallers)

    def call(self, call: Call, cancel: Cancel | None) -> Any:
        until = clock() + call.request_timeout_s
        node = self.topology.node_for(call.keys[0], call.node)
        if self._moves:
            call = _within(call, until)  # the table of slots may have been waited for
        try:
            if cancel is None:
                reply = node.call(call)
            else:
                reply = self._abortable(lambda on_wire: node.call(call, on_wire), cancel)
            if self._driver.troubles:
                self._driver.troubles.passed(node.name)
            return reply
        except RequestFailed as failure:
            return self.follow(node, failure, call, until)

    def _elsewhere(self, node: Node, failure: RequestFailed, ask: Callable[[Node, bool], Any]) -> Any:
        """Follow MOVED and ASK; any other trouble is noted, and raised."""
        for _ in range(REDIRECTS_MAX):  # a slot can move while we follow it, but not forever
            if failure.kind not in ("MOVED", "ASK"):
                break
            elsewhere = self.topology.redirect(node, failure)
            if elsewhere is None:
                break
            node, asking = elsewhere
            if not asking:
                self._driver.inboxes.ask_all()  # their inbox is at the node that has owned the slot
            try:
                return ask(node, asking)
            except RequestFailed as again:
                failure = again
        self.in_trouble(node, failure)
        raise failure

    def in_trouble(self, node: Node, failure: RequestFailed) -> None:
        self.topology.troubled(node, failure)
        if self._fails_over and failure.kind in GONE:
            self._driver.inboxes.drop(node)  # it may be connected to what was the master

    def _abortable(self, act: Callable[[Callable[[Wire | None], None]], Any], cancel: Cancel) -> Any:
        in_use: list[Wire] = []
        turn = threading.RLock()  # so that no connection is aborted after it was said to be in use no more

        def on_wire(wire: Wire | None) -> None:
            with turn:
                in_use.clear()
                if wire is not None:
                    in_use.append(wire)
                    if cancel.is_set():
                        wire.abort()

        def abort() -> None:
            with turn:
                for wire in in_use:
                    wire.abort()

        cancel._watch(abort)
        try:
            return act(on_wire)
        except RequestFailed:
            if cancel.is_set():
                raise Cancelled from None
            raise
        finally:
            cancel._unwatch(abort)

    def command(self, command: Command, cancel: Cancel | None) -> Any:
        node = self.topology.node_for(command.key, command.node)
        until = clock() + command.request_timeout_s
        try:
            if command.session is None:
                return node.command(command)
            return self._command_in_session(node, command)
        except RequestFailed as failure:
            if command.session is not None:
                if failure.kind == "MOVED":
                    self.topology.redirect(node, failure)  # the session has to start over, at the right node
                self.in_trouble(node, failure)
                raise
            return self._elsewhere(node, failure, partial(_command_at, command, until))

    def _command_in_session(self, node: Node, command: Command) -> Any:
        """One connection for all commands of a session; EXEC, DISCARD, UNWATCH and trouble end it."""
        session = command.session
        assert session is not None
        wire = self._sessions.pop(session, None) or node.take(command.request_timeout_s)
        reply = node.command_on(wire, command)  # closes the wire on trouble
        if str(command.args[0]).upper() in ("EXEC", "DISCARD", "UNWATCH"):
            node.put(wire)
        else:
            self._sessions[session] = wire
        return reply

    def call_many(self, many: CallMany, cancel: Cancel | None) -> list[Answer]:
        nodes = [self.topology.node_for(call.keys[0], call.node) for call in many.calls]
        answers = (self._call_slots if self._moves else self._call_members)(many, nodes, cancel)
        for call, node, answer in zip(many.calls, nodes, answers, strict=True):
            if isinstance(answer, RequestFailed):
                answer.about(call)
                self._driver.troubles.saw(answer)
            elif answer is not None and self._driver.troubles:
                self._driver.troubles.passed(node.name)
        return answers

    def _call_slots(self, many: CallMany, nodes: Sequence[Node], cancel: Cancel | None) -> list[Answer]:
        """Several slots, which may have moved; one after the other where replicas have to acknowledge."""
        answers: list[Answer]
        if any(call.sync is not None for call in many.calls):
            answers = []
            for call in many.calls:
                try:
                    answers.append(self.call(call, cancel))
                except RequestFailed as failure:
                    answers.append(failure)
            return answers
        until = clock() + many.request_timeout_s
        answers = self._call_members(many, nodes, cancel)
        for index, answer in enumerate(answers):
            if isinstance(answer, RequestFailed):
                try:
                    call = many.calls[index]
                    answers[index] = self.follow(nodes[index], answer, call, until)
                except RequestFailed as failure:
                    answers[index] = failure
        return answers

    def _call_members(self, many: CallMany, nodes: Sequence[Node], cancel: Cancel | None) -> list[Answer]:
        if cancel is None:
            return ask_all(many, nodes, self._dialler, self._driver.adopt, None)
        watched: list[Callable[[], None]] = []

        def cancelled(wake: Callable[[], None] | None) -> bool:
            if wake is not None:
                watched.append(wake)
                cancel._watch(wake)
            return cancel.is_set()

        try:
            answers = ask_all(many, nodes, self._dialler, self._driver.adopt, cancelled)
        finally:
            for wake in watched:
                cancel._unwatch(wake)
        if cancel.is_set():
            raise Cancelled
        return answers

    def _dialler(self, node: Node) -> Dialler:
        dialler = self._diallers.get(node)
        if dialler is None:
            for other in [other for other in tuple(self._diallers) if other.closed]:  # it has left its Cluster
                self._diallers.pop(other).stop()
            dialler = self._diallers.setdefault(node, Dialler(node))
        return dialler

    def follow(self, node: Node, failure: RequestFailed, call: Call, until: float) -> Any:
        """The reply to a call that ended so at this node, if it is to be had elsewhere by then."""
        return self._elsewhere(node, failure, partial(_call_at, call, until))

    def stop_dialling(self) -> None:
        """Threads that dial end as soon as they do not hang."""
        for dialler in tuple(self._diallers.values()):
            dialler.stop()

    def end_sessions(self) -> None:
        """Close the connections of sessions."""
        for wire in self._sessions.values():
            wire.close()
        self._sessions.clear()


def _command_at(command: Command, until: float, node: Node, asking: bool) -> Any:
    left_s = redirect_timeout_s(until)
    return node.command(
        Command(command.args, left_s, command.key, command.node, command.session, command.fits), asking=asking
    )


def _call_at(call: Call, until: float, node: Node, asking: bool) -> Any:
    """Elsewhere, in the time that is left of the first request's."""
    return node.call(_within(call, until), asking=asking)


def _within(call: Call, until: float) -> Call:
    return Call(call.script, call.keys, call.args, redirect_timeout_s(until), call.node, call.sync)
