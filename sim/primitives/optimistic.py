"""Without a lock: WATCH and EXEC, compare and set, guarded writes. No update is lost, no older token writes."""

from __future__ import annotations

import itertools
from typing import Any

from holdfast._core import optimistic
from holdfast._core.effects import Call, Command
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.plain import Scripts
from sim.driver import Process, Work
from sim.network import Node, Request
from sim.sessions import Sessions, Thing
from sim.world import World

__all__ = ["PRIMITIVE"]

#: Longer than any world.
_KEEP_MS = 86_400_000
_ATTEMPTS = 10


class _Failed(Exception):
    """What a user's function raises."""


class _Values(Thing):
    """A counter that all update, `<number> <who>`; and a value that is written under fencing tokens."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, lock_keys("holdfast", name))
        self.guarded = f"{self.keys.base}:guarded"
        self.guarded_key = self.guarded.encode()
        self.seen = f"{self.keys.base}:fenced"
        #: The counter by the server's last word, and all updates that were ever made.
        self.number = 0
        self.applied: set[bytes] = set()
        #: The guarded value, and the newest token of its writers.
        self.value: bytes | None = None
        self.newest = 0

    def held(self) -> list[bytes]:
        return []

    def queued(self) -> list[bytes]:
        return []


class Optimistic(Sessions[_Values]):
    """Workload and invariants of what needs no lock."""

    name = "optimistic"
    fits_small_worlds = False  # what is watched is in no key
    worker = "writer"

    def __init__(self, world: World) -> None:
        super().__init__(world, [_Values(world, f"v{number}") for number in range(world.options.locks)])
        #: Whether the servers know SET … IFEQ.
        self.scripts = Scripts()
        self.scripts.ifeq = world.rng.random() < 0.5
        self.fences = itertools.count(1)

    # -- workload ---------------------------------------------------------------------------------

    async def session(self, process: Process, thing: _Values) -> None:
        rng = self.world.rng
        r = rng.random()
        try:
            for _ in range(rng.choice((1, 3, 8))):
                if r < 0.4:
                    await self.compare(process, thing)
                elif r < 0.8:
                    await self.transact(process, thing)
                else:
                    await self.guard(process, thing)
        except RequestFailed as failure:
            self.world.counted["RequestFailed"] += 1
            if self.world.trace is not None:
                self.world.note(process.name, repr(failure))

    async def compare(self, process: Process, thing: _Values) -> None:
        """One update by comparing."""
        self.plays("Client.compare_and_set")
        key, request_timeout_s, token = thing.keys.lock, process.settings.request_timeout_s, process.token()
        old = await Command(("GET", key), request_timeout_s, key)
        keeps = old is not None and self.world.rng.random() < 0.3
        done = await optimistic.compare_and_set(
            key, old, _next(old, token), -1 if keeps else _KEEP_MS, self.scripts, process.settings
        )
        self.told(thing, token, done)

    async def transact(self, process: Process, thing: _Values) -> None:
        """One update as `Optimistic.run` does it."""
        self.plays("Optimistic.run", "Transaction.get", "Transaction.execute", "Transaction.set", "Transaction.queue")
        rng = self.world.rng
        key, request_timeout_s = thing.keys.lock, process.settings.request_timeout_s
        for attempt in range(_ATTEMPTS):
            session = process.token()
            writes = rng.random() < 0.9
            try:
                try:
                    await optimistic.watch(session, [key], request_timeout_s)
                    old = await optimistic.read(session, key, ("GET", key), request_timeout_s)
                    if rng.random() < 0.05:
                        raise _Failed
                except BaseException:
                    await optimistic.leave(session, key, request_timeout_s)
                    raise
                commands = [("SET", key, _next(old, session), "PX", _KEEP_MS)] if writes else []
                done = await optimistic.finish(session, key, commands, request_timeout_s)
            except _Failed:
                self.looks_away(process, thing, session)
                return
            self.looks_away(process, thing, session)
            if writes:
                self.told(thing, session, done is not optimistic.CONFLICT)
            if done is not optimistic.CONFLICT:
                return
            await optimistic.pause(attempt)
        self.world.counted["conflict"] += 1

    async def guard(self, process: Process, thing: _Values) -> None:
        """A write or a deletion under a token, which may have grown old meanwhile."""
        self.plays("fencing.guarded_set")
        rng = self.world.rng
        fence = next(self.fences)
        if rng.random() < 0.5:
            await Work(rng.random() * self.world.options.work_s)
        value = f"{fence} {process.token()}"
        ttl_ms = -1 if fence % 4 == 0 else _KEEP_MS
        newer = await optimistic.fenced_set(
            thing.guarded, thing.seen, fence, value, ttl_ms, _KEEP_MS, process.settings.request_timeout_s
        )
        if newer is None:
            self.world.grants += 1
        elif newer <= fence:
            self.world.fail("refused", f"{value} was refused for {newer}")

    def told(self, thing: _Values, token: str, done: bool) -> None:
        """Check what a client is told of an update."""
        world = self.world
        world.grants += done
        if done != (token.encode() in thing.applied) and not world.options.replicas:
            world.fail("lost update", f"{token} was told {done}, and it is not so")

    def looks_away(self, process: Process, thing: _Values, session: str) -> None:
        """Check that a connection is as new after an attempt."""
        connection = thing.node.connections.pop(session, None)
        if session in process.dropped:
            return
        if connection is not None and (connection.watched or connection.queued is not None):
            self.world.fail("left watching", f"{session} watches {[*connection.watched]}")

    # -- invariants on the server -----------------------------------------------------------------

    def executed(self, node: Node, request: Request, value: Any, error: RequestFailed | None) -> None:
        call = request.call
        key = call.keys[0] if type(call) is Call else call.key or "" if type(call) is Command else ""
        if type(call) is Call and call.script == "fenced_set":
            thing = next((each for each in self.things if each.guarded == key), None)
            if thing is not None and node is thing.node and error is None:
                self.guarded(node, thing, call, value)
            return
        thing = self.by_key.get(key)
        if thing is None or node is not thing.node:
            return
        found = node.server.peek(thing.key, node.server.now_ms)
        if found is None:
            return
        number, who = _parts(found)
        if who in thing.applied:
            if number != thing.number:
                self.world.fail("lost update", f"{found!r} is back, after number {thing.number}")
            return
        if number != thing.number + 1:
            self.world.fail("lost update", f"{found!r} was written on top of number {thing.number}")
        thing.number = number
        thing.applied.add(who)

    def guarded(self, node: Node, thing: _Values, call: Call, reply: Any) -> None:
        """A guarded write: done if no newer token has written, and only then."""
        fence = int(call.args[0])
        found = node.server.peek(thing.guarded_key, node.server.now_ms)
        if (reply == 0) != (fence >= thing.newest):
            self.world.fail("stale write", f"token {fence} was told {reply!r} after {thing.newest}")
        if reply == 0:
            thing.newest = max(thing.newest, fence)
            thing.value = None if call.args[2] == -1 else bytes(call.args[1])  # type: ignore[arg-type]
        if found != thing.value:
            self.world.fail("stale write", f"token {fence} was told {reply!r}, and left {found!r}")

    def lost_data(self, node: Node) -> None:
        for thing in self.things:
            if node is thing.node:
                now_ms = node.wall_ms()
                found = node.server.peek(thing.key, now_ms)
                thing.number = 0 if found is None else _parts(found)[0]
                thing.value = node.server.peek(thing.guarded_key, now_ms)
                thing.newest = int(node.server.peek(thing.seen.encode(), now_ms) or 0)


def _parts(value: bytes) -> tuple[int, bytes]:
    number, who = value.split(b" ")
    return int(number), who


def _next(old: bytes | None, token: str) -> str:
    return f"{1 if old is None else _parts(old)[0] + 1} {token}"


PRIMITIVE = Optimistic
