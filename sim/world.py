"""A world: one seed's machines, network, clients and what they do, under one virtual clock.

Theory: a primitive joins the simulation as a `Primitive` in a module of its own under `primitives/`: it starts
workers in every process and is told what the servers executed. What strikes, and when, is not of the world:
sim/faults.py and sim/course.py make it live.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast._core.effects import Call
from holdfast._core.failure import RequestFailed
from holdfast._core.settings import Settings
from sim.driver import Process
from sim.network import Node, Request, Site
from sim.options import Options

__all__ = ["Primitive", "World"]


class Primitive:
    """A primitive's workload and invariants. Subclasses say `name` and override what they need."""

    name = ""

    def __init__(self, world: World) -> None:
        self.world = world

    def plays(self, *operations: str) -> None:
        """Public operations that are played now, by their names: see tests/simulation/test_everything_public.py."""
        self.world.played.update(operations)

    def start(self, process: Process) -> None:
        """Start the workers of a process; called for each that begins."""

    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        """A server has carried a request out; `node.server.touched` holds the keys that it changed."""

    def crashed(self, process: Process) -> None:
        """A process is no more."""

    def closed(self, process: Process) -> None:
        """A client was closed, and has given everything back: nothing of it is left on the server."""

    def lost_data(self, node: Node) -> None:
        """A server has lost its data, or other data than before are the master's."""

    def settled(self) -> None:
        """Everyone has come to an end and all that was under way has arrived: nothing may be left."""


def parts_of(request: Request, value: Any, error: RequestFailed | None) -> list[tuple[Request, Any]]:
    """Split a request into its parts, each with its answer: one for each lease that it renewed."""
    call = request.call
    if type(call) is not Call or call.script != "renew_many" or error is not None:
        return [(request, value)]
    answers, keys, args = iter(value), list(call.keys), list(call.args)
    parts: list[tuple[Request, Any]] = []
    while args:
        (script, count, width, more), args = args[:4], args[4:]
        shared, args = args[: int(more)], args[int(more) :]
        for token in args[: int(count)]:
            own, keys = keys[: int(width)], keys[int(width) :]
            asked = Call(str(script), own, (token, *shared), 0.0)
            part = Request(request.process, asked, request.answer, request.sent_at)
            part.twin = request.twin
            answer = next(answers)
            if answer >= 0:
                parts.append((part, answer))
        args = args[int(count) :]
    return parts


class World(Site):
    """Everything of one run."""

    def __init__(
        self,
        options: Options,
        primitives: list[Callable[[World], Primitive]],
        *,
        trace: bool = False,
    ) -> None:
        super().__init__(options, trace=trace)
        self.settings = Settings(
            claim_ms=options.claim_ms,
            contended_acquires=options.contended_acquires,
            renew_early_fraction=options.renew_early_fraction,
            tenure_ms=options.tenure_ms,
            undisturbed_ms=options.undisturbed_ms,
        )
        self.primitives = [make(self) for make in primitives]
        self.processes: list[Process] = []
        for _ in range(options.processes):
            self.add_process()

    # -- what happened ----------------------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        for each, answer in parts_of(request, value, error):
            for primitive in self.primitives:
                primitive.executed(node, each, answer, error)

    def lost_data(self, node: Node) -> None:
        for primitive in self.primitives:
            primitive.lost_data(node)

    def stuck(self) -> None:
        """Check that every task has come to an end."""
        waiting = [f"{task.label} of {process.name}" for process in self.processes for task in process.tasks]
        if waiting:
            self.fail("stuck", f"still under way long after the last fault: {', '.join(waiting[:10])}")

    # -- processes --------------------------------------------------------------------------------

    def add_process(self) -> Process:
        process = Process(self, len(self.processes) + 1, self.settings)
        self.processes.append(process)
        for primitive in self.primitives:
            primitive.start(process)
        return process

    def closed(self, process: Process, *, settled: bool) -> None:
        """A client has been closed. `settled`: nothing that it had to give back is still under way."""
        if self.trace is not None:
            self.note(process.name, f"is closed{'' if settled else ', and leaves some of it to the ttl'}")
        process.end()
        for inbox in list(process.subscriptions.values()):
            self.network.close(inbox)
        for primitive in self.primitives:
            primitive.crashed(process)
            if settled:
                primitive.closed(process)

    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.alive]
