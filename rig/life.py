"""A process that lives through faults of the process: `python -m rig.life JSON`. Its ends are in `rig.exits`.

It does what `rig.actions` has, in several threads or tasks, while `rig.hazards` strikes; then closes its clients, looks
for what they have left, and ends in the way that it was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import importlib
import json
import signal
import sys
import threading
import time
import warnings
from datetime import UTC, datetime
from typing import Any

from rig import exits
from rig.actions import Actions
from rig.hazards import Hazards
from rig.state import OWN_TTL_S, Interrupted, LifeState, Shared, driven
from rig.watch import stacks
from testbed import leaks

__all__ = ["Life"]

#: What is being closed, joined, or left over has this long, s.
_SETTLE_S = 20.0
#: Memory may grow by so much between the second and the last third of a long life, MB.
_GROWTH_MB = 6.0


class Life(LifeState):
    """One life, from its clients to its end."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.hazards: Hazards | None = None
        super().__init__(config)

    def hung(self, what: str, stacks: str) -> None:
        """Report a life that hangs. Called in the watch's thread, just before the end of the process."""
        found: list[str] = []
        asking = threading.Thread(target=self._who_holds, args=(found,), daemon=True)
        with contextlib.suppress(RuntimeError):
            asking.start()
            asking.join(10)
        self.broken("\n".join([what, *found, stacks]))

    def _who_holds(self, found: list[str]) -> None:
        """Report what the blocks of this life wait for: its clients, and the holders of its locks."""
        if self.hazards is not None:
            self.hazards.lift()
        client = self._public.connect(self.config["url"], ttl=self.config["ttl_s"], **self.config["options"])
        found.append(f"  at {datetime.now(UTC):%H:%M:%S}")
        for shared in self.clients:
            leases = [f"{lease.name} by {lease.token}" for lease in shared.client.held()]
            found.append(f"  client {shared.client._session.driver.client_id} holds {leases}")
        try:
            for number in range(3):
                lock = client.lock(f"own-{self.name}-{number}", ttl=OWN_TTL_S)
                found.append(f"  {lock.name}: {lock.waiters()} wait, held by {lock.holder()!r}")
            for listed in () if self.over_quorum else client.list(f"own-{self.name}-*"):
                found.append(f"  {listed.name}: {[(each.token, each.age_s) for each in listed.queue]} wait")
        except self.errors as error:
            found.append(f"  {error}")

    def live(self) -> None:
        """Threads, or greenlets that take themselves for threads."""
        self._warm()
        before = leaks.take()
        growth = leaks.Growth()
        self.clients = [Shared(self.connect(), self.over_quorum) for _ in range(2)]
        hazards = self.hazards = Hazards(self, self.faults)
        actions = [Actions(self, number) for number in range(self.config["loops"])]
        threads = [threading.Thread(target=self._work, args=(each,), name="rig-loop") for each in actions[1:]]
        for thread in threads:
            thread.start()
        hazards.begin()
        until = time.monotonic() + self.config["seconds"]
        sampled_at = time.monotonic()
        while time.monotonic() < until:
            self.armed = False
            self.watch.end(0)
            try:
                driven(actions[0].one())
            except Interrupted:
                pass
            except Exception as error:
                self.crashed(error)
                break
            if time.monotonic() - sampled_at > 1.0 and self.config["long"]:
                sampled_at = time.monotonic()
                growth.sample()
        self.armed = False
        hazards.end()
        self.stopping = True
        self._closing(threads)
        del actions, threads, hazards
        self._check(before, growth)

    def _work(self, actions: Actions) -> None:
        while not self.stopping:
            try:
                driven(actions.one())
            except BaseException as error:
                self.crashed(error)
                return

    def _closing(self, threads: list[threading.Thread]) -> None:
        self.watch.begin("close", "the end of the loops, and close()", _SETTLE_S + self.bound_s)
        for thread in threads:
            thread.join()
        for lease in self.spare_leases:
            with contextlib.suppress(self.errors):
                lease.release()
        for shared in (*self.clients, *(Shared(client, True) for client, _ in self.spare_clients)):
            shared.client.close()
        self._forget()
        self.watch.end("close")

    def _forget(self) -> None:
        self.clients.clear()
        self.spare_leases.clear()
        self.spare_clients.clear()
        self.cancels.clear()
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _warm(self) -> None:
        """Import and cache what the first use does, so that it is not taken for a leak."""
        client = self.connect()
        with contextlib.suppress(self.errors):
            client.lock(f"own-{self.name}-warm").acquire(timeout=5).release()
        client.close()
        del client
        gc.collect()

    def _check(self, before: leaks.Taken, growth: leaks.Growth) -> None:
        self.watch.begin("leaks", "the look for leaks", _SETTLE_S + 30)
        found = leaks.left_over(before, _SETTLE_S)
        if found and "exception" in self.faults:
            found = self._begun(found)
        if found:
            self.broken(f"left over in the process: {'; '.join(found)}\n{stacks()}")
        if (grown := growth.steady()) > _GROWTH_MB:
            self.broken(f"memory grows: {grown:.1f} MB from the second to the last third: {growth.samples}")
        if growth.samples:
            self.log.note("memory", growth.samples[0], growth.samples[-1])
        self.watch.end("leaks")

    def _begun(self, found: list[str]) -> list[str]:
        """Return what is left over, unless threads that have never begun, and what they refer to, may be all of it.

        An exception amid `Thread.start` can leave a thread so for good: behind the lock under which it is noted, or
        with the lock of its `_started`. That is Python's, whatever the library does.
        """
        unbegun = {thread.name for thread in threading.enumerate() if not thread.is_alive()}
        threads = {each.split(": ")[1].partition(" × ")[0] for each in found if each.startswith("threads: ")}
        if not threads or not threads <= unbegun:
            return found
        self.played["a thread that never begins, by an exception"] += 1
        return []

    async def alive(self) -> None:
        """The same with tasks."""
        self.loop = asyncio.get_running_loop()
        await self._awarm()
        before = leaks.take()
        growth = leaks.Growth()
        self.clients = [Shared(self.connect(), self.over_quorum) for _ in range(2)]
        hazards = self.hazards = Hazards(self, self.faults)
        tasks = [asyncio.create_task(self._awork(Actions(self, number))) for number in range(self.config["loops"])]
        hazards.begin()
        until = time.monotonic() + self.config["seconds"]
        while time.monotonic() < until and not all(task.done() for task in tasks):
            await asyncio.sleep(1.0 if self.config["long"] else 0.1)
            if self.config["long"]:
                growth.sample()
        hazards.end()
        self.stopping = True
        self.watch.begin("close", "the end of the loops, and close()", _SETTLE_S + self.bound_s)
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.crashed(error)
        await self._aclosing()
        del tasks, hazards, task
        self.watch.end("close")
        for _ in range(20):
            await asyncio.sleep(0.01)
        until = time.monotonic() + _SETTLE_S
        while leaks.take().beyond(before) and time.monotonic() < until:
            await asyncio.sleep(0.2)
        self._check_now(before, growth)
        self.loop = None

    async def _aclosing(self) -> None:
        for lease in self.spare_leases:
            with contextlib.suppress(self.errors):
                await lease.release()
        for client in (*(shared.client for shared in self.clients), *(client for client, _ in self.spare_clients)):
            await client.close()
        self._forget()

    def _check_now(self, before: leaks.Taken, growth: leaks.Growth) -> None:
        found = leaks.take().beyond(before)
        if found:
            self.broken(f"left over in the process: {'; '.join(found)}\n{stacks()}")
        if (grown := growth.steady()) > _GROWTH_MB:
            self.broken(f"memory grows: {grown:.1f} MB from the second to the last third: {growth.samples}")
        if growth.samples:
            self.log.note("memory", growth.samples[0], growth.samples[-1])

    async def _awork(self, actions: Actions) -> None:
        while not self.stopping:
            await actions.one()

    async def _awarm(self) -> None:
        client = self.connect()
        with contextlib.suppress(self.errors):
            await (await client.lock(f"own-{self.name}-warm").acquire(timeout=5)).release()
        await client.close()
        del client
        gc.collect()

    def lift_limits(self) -> None:
        """Lift all limits, in a child of fork."""
        if self.hazards is not None:
            self.hazards.end()


def _unraisable(told: Any) -> None:
    """An exception out of a finalizer: ours are no news, others are."""
    if not isinstance(told.exc_value, Interrupted):
        sys.__unraisablehook__(told)


def main(config: dict[str, Any]) -> int:
    """Live, then end."""
    if config["api"] == "gevent":
        importlib.import_module("gevent.monkey").patch_all()
    warnings.simplefilter("ignore", ResourceWarning)
    warnings.simplefilter("ignore", DeprecationWarning)  # of fork with threads, which is what we are here for
    warnings.simplefilter("error", RuntimeWarning)
    # An exception may fall between the making of a coroutine of ours and its first step.
    warnings.filterwarnings("ignore", message="coroutine 'Actions", category=RuntimeWarning)
    sys.unraisablehook = _unraisable
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config["exit"] == "atexit before the import":
        exits.register_early()
    life = Life(config)
    if config["api"] == "asyncio":
        asyncio.run(life.alive())
    else:
        life.live()
    return exits.leave(life)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
