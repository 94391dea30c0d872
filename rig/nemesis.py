"""Draws faults from the catalogue, injects them and heals them.

Each fault is a method that returns when it is healed. Those that are known to take leases away carry the row of the
catalogue that says so: what overlaps because of them is documented, everything else is a violation.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis

from holdfast import embedded
from rig.history import now_ns
from rig.run import Run
from rig.stages import Stage

__all__ = ["Fault", "Nemesis"]

#: The server's clock is that much faster than ours: below the 1 % that a validity allows for.
_RATE_PPM = 8_000
#: Servers and wires are well under these.
_OF_PROCESSES = ("kill a worker", "stop a worker", "kill a command", "stop a command")


class Fault(NamedTuple):
    """What was done. `row`: of the catalogue, where leases are known to be lost by it; else None."""

    kind: str
    begin_ns: int
    end_ns: int
    row: int | None


class Nemesis:
    """Breaks one run. `pause_s`: between a healing and the next fault."""

    def __init__(
        self,
        run: Run,
        seed: int,
        pause_s: tuple[float, float] = (0.8, 2.0),
        *,
        workers_only: bool = False,
        only: Sequence[str] = (),
    ) -> None:
        self._run = run
        self._random = random.Random(f"nemesis-{seed}")
        self._pause_s = pause_s
        self._jumped_s = 0
        self._hurries = False
        self.faults: list[Fault] = []
        #: Since when a server or a wire is in trouble, or None.
        self._since_ns: int | None = None
        self._menu: list[tuple[str, int | None, Callable[[], None]]] = [
            ("kill a worker", None, self._kill_worker),
            ("stop a worker", None, self._stop_worker),
        ]
        if run.commands:
            self._menu += [
                ("kill a command", None, lambda: self._hurt_command(signal.SIGKILL)),
                ("stop a command", None, lambda: self._hurt_command(signal.SIGSTOP)),
            ]
        if not workers_only:
            self._add_servers(run.stage)
        if only:
            known = [kind for kind, _, _ in self._menu]
            if unknown := [kind for kind in only if kind not in known]:
                raise ValueError(f"no fault {unknown[0]!r} here: there are {', '.join(known)}")
            self._menu = [each for each in self._menu if each[0] in only]

    @property
    def rows(self) -> list[int]:
        """Of the catalogue of faults: those of the faults that may come."""
        return sorted({row for _, row, _ in self._menu if row is not None})

    def _add_servers(self, stage: Stage) -> None:
        self._menu += [
            ("kill connections", None, self._kill_connections),
            ("cut off a stopped worker", None, self._cut_off_stopped),
            ("forget scripts", None, self._flush_scripts),
        ]
        if stage.wires:
            self._menu += [
                ("partition", None, self._partition),
                ("lost reply", None, lambda: self._lose("lose the reply")),
                ("reset before", None, lambda: self._lose("reset")),
                ("reset after", None, lambda: self._lose("reset after")),
                ("half-open connections", None, self._freeze),
                ("delay", None, self._delay),
                ("fading connections", None, self._fade),
                ("late requests", None, lambda: self._late("hold")),
                ("late replies", None, lambda: self._late("hold the reply")),
                ("requests that come twice", None, self._twice),
                ("refused connections", None, self._refuse),
            ]
        if stage.name == "single":
            self._menu += [
                ("stop the server", None, self._stop_server),
                *(
                    [("restart with data", None, self._restart)]
                    if stage.durable
                    else [("restart empty", 46, self._restart)]
                ),
                ("flush all", 55, self._flush_all),
                ("memory limit", None, self._limit_memory),
                ("pause clients", None, self._pause_clients),
                ("busy script", None, self._busy_script),
                ("read-only", None, self._read_only),
            ]
            if stage.clock is not None:
                self._menu += [
                    ("server clock ahead", 41, self._server_clock),
                    ("server clock faster", None, self._server_rate),
                    ("client clocks jump", None, self._client_clocks),
                ]
        if stage.name == "quorum":
            self._menu += [
                ("stop two members", None, self._stop_server),
                ("restart a member empty", None, self._restart),
                ("restart a majority empty", None, lambda: self._restart(len(stage.servers) // 2 + 1)),
            ]
        if stage.name == "sentinel":
            self._menu += [("failover", None, self._failover), ("stop the master", None, self._stop_master)]
        if stage.name == "cluster":
            # Without sync_replicas a promoted replica may lack the last writes: that is what the row says.
            self._menu += [("failover", None if stage.options else 22, self._failover)]

    def run(self, stopping: threading.Event) -> None:
        """Fault after fault, all kinds in turn before any comes again, until told to stop."""
        while True:
            for kind, row, inject in self._random.sample(self._menu, len(self._menu)):
                if stopping.wait(self._random.uniform(*self._pause_s)):
                    return
                begin_ns = now_ns()
                self._since_ns = None if kind in _OF_PROCESSES else begin_ns
                self._run.say(f"fault: {kind}")
                with contextlib.suppress(redis.RedisError):
                    inject()
                fault = Fault(kind, begin_ns, now_ns(), row)
                self.faults.append(fault)
                self._run.log.event("fault", "nemesis", begin_ns, kind=kind, to=fault.end_ns, row=row)
                self._since_ns = None
                if stopping.is_set():
                    return

    def troubled(self, begin_ns: int, end_ns: int) -> bool:
        """True if a server or a wire was in trouble in between."""
        since_ns = self._since_ns
        return (since_ns is not None and since_ns <= end_ns) or any(
            fault.begin_ns <= end_ns and fault.end_ns >= begin_ns
            for fault in tuple(self.faults)
            if fault.kind not in _OF_PROCESSES
        )

    def _some_time(self, least_s: float = 0.3, most_s: float | None = None) -> None:
        self._run.stopping.wait(self._random.uniform(least_s, 2 * self._run.ttl_s if most_s is None else most_s))

    # ---- workers ----

    def _kill_worker(self) -> None:
        workers = [number for number, worker in enumerate(self._run.workers) if not worker.is_command]
        self._run.replace(self._random.choice(workers))

    def _hurt_command(self, number: signal.Signals) -> None:
        """`holdfast run`, its guard or the command itself: none of them lets the command go on beyond its lease."""
        worker = self._random.choice([each for each in self._run.workers if each.is_command])
        pid = self._random.choice(worker.descendants() or [0])
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                if number == signal.SIGSTOP:
                    self._some_time()
                    os.kill(pid, signal.SIGCONT)

    def _stop_worker(self) -> None:
        worker = self._random.choice([each for each in self._run.workers if not each.is_command])
        worker.pause()
        try:
            self._some_time()
        finally:
            worker.resume()

    def _cut_off_stopped(self) -> None:
        """Close its connections while it is stopped: with `crash_release`, others get in before it wakes up."""
        worker = self._random.choice([each for each in self._run.workers if not each.is_command])
        worker.pause()
        try:
            self._kill_connections()
            self._some_time()
        finally:
            worker.resume()

    # ---- wires ----

    def _wires(self) -> list[Any]:
        """Choose the wires of one worker; of a quorum's, any number of them."""
        wires = self._random.choice(list(self._run.stage.wires.values()))
        return self._random.sample(wires, self._random.randint(1, len(wires)))

    def _partition(self) -> None:
        wires = self._wires()
        for wire in wires:
            wire.partition()
        self._some_time()
        for wire in wires:
            wire.heal()

    def _lose(self, action: Any) -> None:
        wires = self._wires()
        for wire in wires:
            wire.on(b"*", action, most=self._random.randint(1, 3), skip=self._random.randint(0, 5))
        self._some_time(most_s=1)
        for wire in wires:
            wire.heal()

    def _freeze(self) -> None:
        for wire in self._wires():
            wire.freeze()

    def _delay(self) -> None:
        wires = self._wires()
        most_s = self._random.choice((0.2, self._run.ttl_s * 0.2)) * self._random.uniform(0.05, 1)
        for wire in wires:
            wire.slow(0.005, most_s)
        self._some_time()
        for wire in wires:
            wire.heal()

    def _fade(self) -> None:
        """A connection gets slow, then nothing comes through."""
        wires, ttl_s = self._wires(), self._run.ttl_s
        for wire in wires:
            wire.slow(0.08 * ttl_s, 0.15 * ttl_s)
        self._some_time(least_s=0.5 * ttl_s, most_s=ttl_s)
        for wire in wires:
            wire.partition()
        self._some_time(least_s=1.2 * ttl_s, most_s=1.5 * ttl_s)
        for wire in wires:
            wire.heal()

    def _late(self, action: Any) -> None:
        """Delay requests or answers of a client by more than the lease lasts."""
        wires = self._wires()
        skip = self._random.randint(0, 2)  # what a holder sends next is its release, and then its next acquire
        rules = [wire.on(b"*", action, most=self._random.randint(1, 3), skip=skip) for wire in wires]
        self._some_time(least_s=1.5 * self._run.ttl_s, most_s=2.5 * self._run.ttl_s)
        for wire, rule in zip(wires, rules, strict=True):
            rule.let_go()
            wire.heal()

    def _twice(self) -> None:
        wires = self._wires()
        for wire in wires:
            wire.on(b"EVALSHA", "again", most=self._random.randint(5, 50))
        self._some_time(most_s=1.5)
        for wire in wires:
            wire.heal()

    def _refuse(self) -> None:
        wires = self._wires()
        for wire in wires:
            wire.refuse()
        self._some_time(most_s=1.5)
        for wire in wires:
            wire.heal()

    # ---- servers ----

    def _look(self, server: embedded.Server) -> Any:
        return self._run.stage.look(server)

    def _kill_connections(self) -> None:
        for server in self._run.stage.masters():
            with self._look(server) as client:
                for kind in self._random.choice((["normal"], ["pubsub"], ["normal", "pubsub"])):
                    client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    def _flush_scripts(self) -> None:
        for server in self._run.stage.masters():
            with self._look(server) as client:
                client.script_flush()

    def _stop_server(self) -> None:
        servers = self._run.stage.servers
        chosen = self._random.sample(servers, 1 if len(servers) == 1 else 2)
        for server in chosen:
            server.pause()
        try:
            self._some_time(0.2, 1.5)
        finally:
            for server in chosen:
                server.resume()

    def _restart(self, number: int = 1) -> None:
        servers = self._random.sample(self._run.stage.servers, number)
        for server in servers:
            server.kill()
        self._some_time(0.05, 0.5)
        for server in servers:
            server.start()

    def _flush_all(self) -> None:
        with self._look(self._run.stage.servers[0]) as client:
            client.flushall()

    def _limit_memory(self) -> None:
        with self._look(self._run.stage.servers[0]) as client:
            client.config_set("maxmemory", 1)
            self._some_time(most_s=1)
            client.config_set("maxmemory", 0)

    def _pause_clients(self) -> None:
        with self._look(self._run.stage.servers[0]) as client:
            client.execute_command(
                "CLIENT", "PAUSE", self._random.randint(200, 1500), self._random.choice(["ALL", "WRITE"])
            )
            self._some_time(most_s=0.5)
            client.execute_command("CLIENT", "UNPAUSE")

    def _busy_script(self) -> None:
        server = self._run.stage.servers[0]

        def block() -> None:
            with contextlib.suppress(redis.RedisError), self._look(server) as client:
                client.eval("while true do end", 0)

        thread = threading.Thread(target=block, daemon=True)
        thread.start()
        self._some_time(0.2, 1)
        with self._look(server) as client:
            while thread.is_alive():
                with contextlib.suppress(redis.RedisError):
                    client.script_kill()
                thread.join(0.05)

    def _read_only(self) -> None:
        with self._look(self._run.stage.servers[0]) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            self._some_time(most_s=1)
            client.execute_command("REPLICAOF", "NO", "ONE")

    # ---- clocks ----

    def _server_clock(self) -> None:
        clock = self._run.stage.clock
        assert clock is not None
        self._jumped_s += 60  # never back: with a restart without data that would be the one case that is not fenced
        clock.jump(self._jumped_s)

    def _server_rate(self) -> None:
        """Make the clock faster for the rest of the run: once, as a second time would set it back."""
        assert self._run.stage.clock is not None
        if not self._hurries:
            self._hurries = True
            self._run.stage.clock.hurry(_RATE_PPM)

    def _client_clocks(self) -> None:
        clock = self._run.client_clock
        if clock is not None:
            clock.jump(self._random.choice((3600, -3600, 86_400, -86_400)))
            self._some_time()
            clock.jump(0)

    # ---- masters ----

    def _failover(self) -> None:
        server = self._random.choice(self._run.stage.masters())
        server.kill()
        self._run.stopping.wait(6)
        server.start()
        self._run.stopping.wait(2)

    def _stop_master(self) -> None:
        server = self._random.choice(self._run.stage.masters())
        server.pause()
        try:
            self._run.stopping.wait(6)
        finally:
            server.resume()
        self._run.stopping.wait(2)
