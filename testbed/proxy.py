"""A wire on loopback with a hand on it: between a client and its server, told from the test what to do.

    with Proxy(server.host, server.port) as proxy:
        locks = holdfast.connect(proxy.url)
        lost = proxy.on("acquire", "lose the reply")
        locks.lock("a").acquire(timeout=20)
        assert lost.times == 1

Law: nothing is made up. Bytes that were sent arrive as they are, later, or not at all (with "again": once more, as from
a proxy that repeats requests), and a connection on which something was swallowed is never repaired, as with TCP. A
partition keeps bytes back and delivers them when it is healed, as retransmission does; so does the end of a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Self, TypeVar

from holdfast._lua import SCRIPTS

__all__ = ["Action", "Proxy", "Rule"]

R = TypeVar("R")

#: What happens at a request that a rule is for.
Action = Literal[
    "swallow",  # it and everything after it never arrives; the connection stays open, dead
    "lose the reply",  # it arrives; nothing comes back on this connection any more
    "reset",  # it does not arrive; the client's connection ends with RST
    "reset after",  # it arrives and is carried out; RST comes instead of the reply
    "hold",  # it waits here until `let_go`
    "hold the reply",  # it is carried out; the reply waits here until `let_go`
    "again",  # it arrives a second time soon after, by a connection of its own; no one reads the reply
    "note",  # nothing: it is only counted
]


class Rule:
    """What to do at requests that contain `needle`: leaves out the first `skip`, serves for `most`."""

    def __init__(self, needle: bytes, action: Action, most: int | None, skip: int) -> None:
        self.needle = needle
        self.action = action
        self.most = most
        self.skip = skip
        self.seen = 0
        #: How often it has acted.
        self.times = 0
        self._acted = threading.Event()
        self._held: list[tuple[_Way, asyncio.AbstractEventLoop]] = []

    def takes(self, data: bytes) -> bool:
        """True if it acts on this request."""
        count = data.count(self.needle)
        if not count:
            return False
        self.seen += count
        if self.seen <= self.skip or (self.most is not None and self.times >= self.most):
            return False
        self.times += 1
        self._acted.set()
        return True

    def has_acted(self, within_s: float = 0.0) -> bool:
        return self._acted.wait(within_s)

    def wait(self, timeout_s: float = 30.0) -> None:
        """Wait until it has acted."""
        assert self._acted.wait(timeout_s), f"no request with {self.needle!r} came within {timeout_s} s"

    def let_go(self) -> None:
        """Release the requests that the rule holds back."""
        held, self._held = self._held, []
        for way, loop in held:
            loop.call_soon_threadsafe(way.open)


class _Way:
    """One direction of one connection: bytes pass, wait, or vanish."""

    def __init__(self, pair: _Pair) -> None:
        self.pair = pair
        self.to: asyncio.Transport | None = None
        self.dead = False
        self.shut = False  # held by a rule
        self.waiting: list[bytes] = []
        self.ended = False
        self._free_at = 0.0
        self._under_way: deque[bytes] = deque()

    def send(self, data: bytes) -> None:
        if self.dead:
            return
        delay_s = self.pair.proxy.delay()
        if not delay_s and not self.pair.delayed:
            self._arrive(data)
            return
        self.pair.delayed = True
        loop = self.pair.proxy.loop
        self._free_at = max(self._free_at, loop.time() + delay_s)
        self._under_way.append(data)
        loop.call_at(self._free_at, self._arrive_next)

    def _arrive_next(self) -> None:
        self._arrive(self._under_way.popleft())  # what was sent first: timers of the same moment come in any order

    def _arrive(self, data: bytes) -> None:
        if self.dead:
            return
        if self.shut or self.pair.proxy.partitioned or self.to is None or self.waiting:
            self.waiting.append(data)
        elif not self.to.is_closing():
            self.to.write(data)

    def end(self) -> None:
        """The sender has closed its end."""
        self.ended = True
        if self._under_way:
            self.pair.proxy.loop.call_at(self._free_at + 0.001, self.end)
        else:
            self.open(False)

    def open(self, unshut: bool = True) -> None:
        """Let go on what waits, if nothing else holds it."""
        if unshut:
            self.shut = False
        if self.shut or self.pair.proxy.partitioned or self.to is None:
            return
        waiting, self.waiting = self.waiting, []
        if not self.dead and not self.to.is_closing():
            for data in waiting:
                self.to.write(data)
        if self.ended and not self.dead:
            self.to.close()


class _Pair:
    """A connection of a client and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.delayed = False
        self.up = _Way(self)
        self.down = _Way(self)
        self.reset_at_reply = False
        self.closed = 0

    def requested(self, data: bytes) -> None:
        """Bytes came from the client."""
        for rule in tuple(self.proxy.rules):
            if not rule.takes(data):
                continue
            if rule.action == "swallow":
                self.up.dead = True
            elif rule.action == "lose the reply":
                self.down.dead = True
            elif rule.action == "reset":
                self.reset()
                return
            elif rule.action == "reset after":
                self.reset_at_reply = True
            elif rule.action == "hold":
                self.up.shut = True
                rule._held.append((self.up, self.proxy.loop))
            elif rule.action == "hold the reply":
                self.down.shut = True
                rule._held.append((self.down, self.proxy.loop))
            elif rule.action == "again":
                self.proxy.keep(self.proxy.loop.create_task(self._again(data)))
        self.up.send(data)

    async def _again(self, data: bytes) -> None:
        await asyncio.sleep(random.uniform(0.0, 0.02))
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(*self.proxy.target)
            writer.write(data)
            writer.write_eof()
            await reader.read()  # what it answers until it sees the end
            writer.close()

    def replied(self, data: bytes) -> None:
        """Bytes came from the server."""
        if self.reset_at_reply:
            self.reset()
        else:
            self.down.send(data)

    def reset(self) -> None:
        """End it with RST towards the client."""
        for way in (self.down, self.up):
            if way.to is not None:
                _reset(way.to)
            way.dead = True

    def freeze(self) -> None:
        """Stop passing anything, without telling either side."""
        self.up.dead = self.down.dead = True


class _ClientEnd(asyncio.Protocol):
    def __init__(self, proxy: Proxy) -> None:
        self.pair = _Pair(proxy)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        pair = self.pair
        if pair.proxy.refusing:
            pair.proxy.refused += 1
            _reset(transport)
            return
        pair.down.to = transport
        pair.proxy.pairs.add(pair)
        pair.proxy.keep(pair.proxy.loop.create_task(self._connect()))

    async def _connect(self) -> None:
        proxy, pair = self.pair.proxy, self.pair
        try:
            transport, _ = await proxy.loop.create_connection(lambda: _ServerEnd(pair), *proxy.target)
        except OSError:
            pair.reset()
            return
        pair.up.to = transport
        pair.up.open(False)

    def data_received(self, data: bytes) -> None:
        self.pair.requested(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.pair.up.end()
        _forget(self.pair)


class _ServerEnd(asyncio.Protocol):
    def __init__(self, pair: _Pair) -> None:
        self.pair = pair

    def data_received(self, data: bytes) -> None:
        self.pair.replied(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.pair.down.end()
        _forget(self.pair)


def _forget(pair: _Pair) -> None:
    pair.closed += 1
    if pair.closed == 2:
        pair.proxy.pairs.discard(pair)


def _reset(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
    transport.abort()


class Proxy:
    """Listens at a port of its own and passes on to `host:port`. Its methods may be called from any thread."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.rules: list[Rule] = []
        self.pairs: set[_Pair] = set()
        self.refusing = False
        #: Connections that were.
        self.refused = 0
        self.partitioned = False
        self._delay_s = (0.0, 0.0)
        self._tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._listener: asyncio.Server = self._do(self._listen)
        self.port: int = self._listener.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def _listen(self) -> asyncio.Server:
        return await self.loop.create_server(lambda: _ClientEnd(self), "127.0.0.1", 0)

    def _do(self, act: Callable[[], Any]) -> Any:
        async def inside() -> Any:
            result = act()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(inside(), self.loop).result(30)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold on to a task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def delay(self) -> float:
        """Return how long the next bytes take, s."""
        least, most = self._delay_s
        return random.uniform(least, most) if most else 0.0

    # ---- what a test does ----

    def on(self, script: str | bytes, action: Action, *, most: int | None = 1, skip: int = 0) -> Rule:
        """A rule for calls of a shipped script (by its name), or for requests that contain these bytes."""
        needle = SCRIPTS[script].sha.encode() if isinstance(script, str) else script
        rule = Rule(needle, action, most, skip)
        self._do(lambda: self.rules.append(rule))
        return rule

    def slow(self, least_s: float, most_s: float | None = None) -> None:
        """Delay every direction by that long from now on."""
        self._delay_s = (least_s, least_s if most_s is None else most_s)

    def cut(self) -> None:
        """RST on every connection."""

        def act() -> None:
            for pair in tuple(self.pairs):
                pair.reset()

        self._do(act)

    def freeze(self) -> None:
        """Make every connection half-open: open, and dead. New ones work."""

        def act() -> None:
            for pair in tuple(self.pairs):
                pair.freeze()

        self._do(act)

    def refuse(self) -> None:
        """RST on every connection, and on every new one."""
        self.refusing = True
        self.cut()

    def partition(self) -> None:
        """Let nothing pass until `heal`, in either direction; nothing is lost either."""
        self.partitioned = True

    def heal(self) -> None:
        """End all rules, delays, partitions and refusals; what was kept back arrives."""

        def act() -> None:
            self.refusing = self.partitioned = False
            self._delay_s = (0.0, 0.0)
            rules, self.rules = self.rules, []
            for rule in rules:
                rule.let_go()
            for pair in tuple(self.pairs):
                pair.up.open()
                pair.down.open()

        self._do(act)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self.pairs)

    def close(self) -> None:
        """End it and all its connections."""
        if self.loop.is_closed():
            return

        async def end() -> None:
            self.refusing = True
            for listening in self._listener.sockets:
                self.loop.remove_reader(listening.fileno())
            for _ in range(5):  # what was accepted in this moment has no pair yet, and needs its listener until then
                await asyncio.sleep(0)
            self._listener.close()
            for pair in tuple(self.pairs):
                pair.reset()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for _ in range(5):  # each transport closes its socket a turn later
                await asyncio.sleep(0)

        self._do(end)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
