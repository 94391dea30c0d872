"""A world: one seed's machines, network, clients and faults under one virtual clock.

Laws: the seed decides everything, so the same seed gives the same trace to the byte; time moves only from one event to
the next; a violated invariant ends the run and names itself.

Theory: three phases. In the first, faults strike (which ones, and how often, the seed draws: a swarm). Then
everything is healed and life goes on, with cancellations only: now waiting must end, and the lock must not lie idle.
At last nobody begins anything new, everybody comes to an end, and nothing may be left on the server.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from holdfast._core.failure import RequestFailed
from holdfast._core.keys import inbox_prefix
from holdfast._core.multilock import slot_of
from holdfast._core.settings import Settings
from sim.driver import Process
from sim.faults import Nemesis, Noise
from sim.network import Network, Node, Request
from sim.options import Options

if TYPE_CHECKING:
    from sim.check import Primitive

__all__ = ["Violation", "World"]


@dataclass(frozen=True)
class Violation:
    """An invariant that did not hold: which one, when (virtual s), and what was seen."""

    kind: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.at:.6f} s: {self.text}"


@dataclass
class Result:
    """What a run came to."""

    seed: int
    violation: Violation | None
    steps: int
    effects: int
    virtual_s: float
    grants: int
    counted: Counter[str] = field(default_factory=Counter)
    #: The primitives that lived in it.
    names: tuple[str, ...] = ()
    #: The public operations that were played.
    played: frozenset[str] = frozenset()


class World:
    """Everything of one run."""

    def __init__(
        self,
        options: Options,
        primitives: list[Callable[[World], Primitive]],
        *,
        trace: bool = False,
    ) -> None:
        self.options = options
        self.seed = options.seed
        self.rng = random.Random(f"holdfast {options.mode} {options.seed}")
        self.now = 0.0
        #: Events that did something: a message that arrived, a timer that fired, a fault.
        self.steps = 0
        #: Effects that drivers performed for protocols.
        self.effects = 0
        self.grants = 0
        self.cancelled = 0
        self.counted: Counter[str] = Counter()
        #: Public operations that were played, by the names of the API: see tests/simulation/test_everything_public.py.
        self.played: set[str] = set()
        self.violation: Violation | None = None
        #: When somebody last learned that it had asked a former master.
        self.redirected_at = -1.0
        self._generations = 0
        self.trace: list[str] | None = [] if trace else None
        self.inboxes = inbox_prefix("holdfast")
        #: "chaos", then "calm", then "drain".
        self.phase = "chaos"
        self.calm_since = float("inf")
        self.heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = itertools.count(1)
        self.settings = Settings(claim_ms=options.claim_ms)
        self.noise: Noise | None = None
        self.network = Network(self)
        self.nodes = [Node(self, number) for number in range(options.nodes)]
        self.master = self.nodes[0]
        if options.replicas:
            for replica in self.nodes[1:]:
                replica.rate = self.master.rate
                replica.follow(self.master)
        self.primitives = [make(self) for make in primitives]
        self.processes: list[Process] = []
        for _ in range(options.processes):
            self.add_process()
        self.nemesis = Nemesis(self)

    # -- time -------------------------------------------------------------------------------------

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """Do it after so many virtual seconds."""
        heappush(self.heap, (self.now + seconds, next(self._sequence), act, args))

    def run(self) -> Result:
        """From the beginning to the end, or to the first violation."""
        self.nemesis.begin()
        self.after(self.options.chaos_s, self._calm)
        heap = self.heap
        pop = heappop
        while heap and self.violation is None:
            self.now, _, act, args = pop(heap)
            act(*args)
        for process in self.processes:
            process.end()
        names = tuple(primitive.name for primitive in self.primitives)
        return Result(
            self.seed,
            self.violation,
            self.steps,
            self.effects,
            self.now,
            self.grants,
            self.counted,
            names,
            frozenset(self.played),
        )

    def _calm(self) -> None:
        self.nemesis.heal()
        self.phase = "calm"
        self.calm_since = self.now
        if self.trace is not None:
            self.note("world", "all is healed")
        self.after(self.options.calm_s, self._drain)

    def _drain(self) -> None:
        self.phase = "drain"
        self.nemesis.rest()
        self.after(self.options.drain_s(), self._stuck)
        self._wait_for_end()

    def _wait_for_end(self) -> None:
        if any(process.tasks for process in self.processes):
            self.after(1.0, self._wait_for_end)
        else:
            # What is still under way arrives, and what nobody renews runs out.
            self.after(self.options.settle_s(), self._settled)

    def _settled(self) -> None:
        for primitive in self.primitives:
            primitive.settled()
        self.heap.clear()

    def _stuck(self) -> None:
        waiting = [f"{task.label} of {process.name}" for process in self.processes for task in process.tasks]
        if waiting:
            self.fail("stuck", f"still under way long after the last fault: {', '.join(waiting[:10])}")

    def new_generation(self) -> int:
        """The number of data that nobody had before."""
        self._generations += 1
        return self._generations

    # -- what happened ----------------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        """A line of the trace. Callers look whether there is one first, for speed."""
        if self.trace is not None:
            self.trace.append(f"{self.now:14.6f}  {who:4}  {what}")

    def fail(self, kind: str, text: str) -> None:
        """An invariant does not hold."""
        if kind in self.options.not_promised:
            self.counted[f"outside the promise: {kind}"] += 1
            return
        if self.violation is None:
            self.violation = Violation(kind, self.now, text)
            if self.trace is not None:
                self.note("!!", f"{kind}: {text}")

    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        for primitive in self.primitives:
            primitive.executed(node, request, value, error)

    def lost_data(self, node: Node) -> None:
        for primitive in self.primitives:
            primitive.lost_data(node)

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
        for inbox in list(process.inboxes.values()):
            self.network.close(inbox)
        for primitive in self.primitives:
            primitive.crashed(process)
            if settled:
                primitive.closed(process)

    def home(self, key: str) -> Node:
        """The server that a key lies on: the master of the moment, or in a Cluster the owner of its slot."""
        return self.nodes[slot_of(key) % len(self.nodes)] if self.options.cluster else self.master

    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.alive]
