"""Elections: one leads inside its validity, who loses the lead campaigns again, and observers see what is so."""

from __future__ import annotations

from typing import Any

from holdfast._api.lease_stack import Leads
from holdfast._core import mutex
from holdfast._core.effects import Call
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.kinds import ELECTION
from holdfast._core.record import LeaseRecord
from sim.check import Belief
from sim.driver import Cancelled, Process, Task, Work
from sim.network import Node, Request
from sim.primitives.mutex import Lock, Locks
from sim.world import World

__all__ = ["PRIMITIVE"]

#: An observer asks about this often, s.
_POLL_S = 5.0


class Election(Locks):
    """Workload and invariants of elections: those of a lock hold for the lead."""

    name = "election"
    worker = "candidate"

    def __init__(self, world: World) -> None:
        leads = [lock_keys("holdfast", f"el{number}").of(ELECTION) for number in range(world.options.locks)]
        super().__init__(world, [Lock(world, keys.name, keys) for keys in leads])
        #: One election object for each process and name, which all its candidates share.
        self.shared: dict[tuple[Process, Lock], Leads[Task, LeaseRecord]] = {}

    # -- workload ---------------------------------------------------------------------------------

    def start(self, process: Process) -> None:
        super().start(process)
        process.begin(self.observe(process), "observer")

    async def session(self, process: Process, thing: Lock) -> None:
        """Do what `Election.run` does: lead, and campaign again when the lead was lost before the work was done."""
        self.plays("Election.run")
        for _ in range(3):
            self.plays("Election.campaign")
            taken = await self.take(process, thing)
            if taken is None:
                return
            await self.lead(process, thing, *taken)
            if taken[0].reason is None or self.world.phase == "drain":
                return

    async def lead(self, process: Process, thing: Lock, record: LeaseRecord, parts: list[tuple[Lock, Belief]]) -> None:
        """Lead by the one object that all candidates of this process share, and resign what it says is ours."""
        leads, me = self.leads_of(process, thing), process.running
        assert me is not None
        leads.won(me, record)
        cancelled = False
        try:
            await self.hold_on(process, record)
        except Cancelled:
            cancelled = True
        self.plays("Election.lease", "Election.is_leader", "Election.resign")
        mine = leads.of(me)
        if mine is not record:
            self.world.fail("another's lead", f"{record.token} resigns {mine and mine.token} of the same object")
        leads.forget(record)
        await self.end(process, record, parts, cancelled)
        if cancelled:
            raise Cancelled

    def leads_of(self, process: Process, thing: Lock) -> Leads[Task, LeaseRecord]:
        """The leads of an election object."""
        leads = self.shared.get((process, thing))
        if leads is None:
            leads = self.shared[process, thing] = Leads(
                lambda task: task.done, lambda record: record.check_expired(process.now())
            )
        return leads

    async def observe(self, process: Process) -> None:
        """Look again and again at who leads, until the world ends."""
        world, rng = self.world, self.world.rng
        newest = dict.fromkeys(self.things, 0)
        while world.phase != "drain" and not process.closing:
            try:
                await Work(rng.random() * 2 * _POLL_S)
                lead = rng.choice(self.things)
                self.plays("Election.leader", "Election.observe")
                leader, _, fence, *_ = await mutex.inspect(lead.keys, process.settings.request_timeout_s)
            except (Cancelled, RequestFailed):
                continue
            if not leader:
                continue
            if fence < newest[lead] and not world.options.replicas:
                world.fail("fence", f"{process.name} saw fence {newest[lead]} of {lead.ledger.name}, and then {fence}")
            newest[lead] = max(newest[lead], fence)

    # -- invariants on the server -----------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        super().executed(node, request, value, error)
        call = request.call
        if type(call) is not Call or call.script != "inspect" or error is not None:
            return
        lead = self.by_key.get(call.keys[0])
        if lead is None:
            return
        server = node.server
        now_ms = server.now_ms
        leader = server.peek(lead.key, now_ms)
        left_ms = -2 if leader is None else server.expires.get(lead.key, now_ms - 1) - now_ms
        queue = server.peek(lead.queue_key, now_ms)
        fence = int(server.peek(lead.fence_key, now_ms) or 0)
        said = [leader or b"", left_ms, fence, len(queue.scores) if queue is not None else 0]
        if value != said:
            self.world.fail("observed", f"{request.process.name} is told {value}, and it is {said}")


PRIMITIVE = Election
