"""Elections: one leads inside its validity, who loses the lead campaigns again, and observers see what is so."""

from __future__ import annotations

from typing import Any

from holdfast._core import mutex
from holdfast._core.effects import Call, Sleep
from holdfast._core.keys import lock_keys
from holdfast._core.trouble import Trouble
from holdfast._sim.driver import Cancelled, Process
from holdfast._sim.network import Node, Request
from holdfast._sim.primitives.mutex import Lock, Locks
from holdfast._sim.world import World

__all__ = ["PRIMITIVE"]

#: An observer asks about this often, s.
_POLL_S = 5.0


class Election(Locks):
    """Workload and invariants of elections: those of a lock hold for the lead."""

    name = "election"
    worker = "candidate"

    def __init__(self, world: World) -> None:
        leads = [lock_keys("holdfast", f"el{number}").part("leader") for number in range(world.options.locks)]
        super().__init__(world, [Lock(world, keys.name, keys) for keys in leads])

    # -- workload ---------------------------------------------------------------------------------

    def start(self, process: Process) -> None:
        super().start(process)
        process.spawn(self.observe(process), "observer")

    async def session(self, process: Process, thing: Lock) -> None:
        """As `Election.run`: lead, and campaign again when the lead was lost before the work was done."""
        for _ in range(3):
            taken = await self.take(process, thing)
            if taken is None:
                return
            await self.live(process, *taken)
            if taken[0].reason is None or self.world.phase == "drain":
                return

    async def observe(self, process: Process) -> None:
        """Look again and again at who leads, until the world ends."""
        world, rng = self.world, self.world.rng
        newest = dict.fromkeys(self.things, 0)
        while world.phase != "drain" and not process.closing:
            try:
                await Sleep(rng.random() * 2 * _POLL_S)
                lead = rng.choice(self.things)
                leader, _, fence, _ = await mutex.inspect(lead.keys, process.settings.patience_s)
            except (Cancelled, Trouble):
                continue
            if not leader:
                continue
            if fence < newest[lead] and not world.options.replicas:
                world.fail("fence", f"{process.name} saw fence {newest[lead]} of {lead.ledger.name}, and then {fence}")
            newest[lead] = max(newest[lead], fence)

    # -- invariants on the server -----------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: Any, error: Trouble | None) -> None:
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
