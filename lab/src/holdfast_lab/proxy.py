"""The wire between one client and one server, with a hand on it.

Every client reaches every server through a link of its own on loopback. A link passes requests on one at a time
per server, looks at the server's keys before and after each, and lets the running scenario hold, drop, delay or
reset what passes.

Law: nothing is made up. A reply comes from the server or not at all; a held request reaches it later, as is.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast_lab.resp import Frames, Push

if TYPE_CHECKING:
    from holdfast_lab.servers import LabServer

__all__ = ["Link", "Listener", "Request"]

#: Sent while a connection is set up; no step of any lock.
_HOUSEKEEPING = frozenset(
    {"HELLO", "CLIENT", "AUTH", "SELECT", "PING", "COMMAND", "INFO", "READONLY", "ECHO", "QUIT", "CONFIG"}
)
#: May wait at the server; they must not make others wait here.
_BLOCKING = frozenset({"BLPOP", "BRPOP", "BLMOVE", "BRPOPLPUSH", "BZPOPMIN", "BZPOPMAX", "XREAD", "WAIT", "WAITAOF"})
_SUBSCRIBING = frozenset({"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "MONITOR"})
_PUSHED = frozenset({b"message", b"pmessage", b"smessage", b"subscribe", b"unsubscribe", b"psubscribe"})


@dataclass(slots=True)
class Request:
    """One request on its way, and what became of it."""

    client: str
    server: str
    words: list[str]
    at_ns: int
    phase: str = ""
    reply: Any = None
    answered_ns: int | None = None
    fate: str = ""
    changed: list[str] = field(default_factory=list)

    @property
    def verb(self) -> str:
        return self.words[0].upper() if self.words else ""

    @property
    def is_step(self) -> bool:
        return self.verb not in _HOUSEKEEPING and self.verb not in _SUBSCRIBING


class Fate(Exception):
    """A request or a reply does not pass: what a scenario does to it instead."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


Hook = Callable[[Request], Awaitable[None]]


class Listener:
    """A port of loopback; each connection that it accepts is served in a task of its own."""

    def __init__(self) -> None:
        self.port = 0
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await self.end_connections()

    async def end_connections(self) -> None:
        """End all that are open now."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            # Also of a task that was cancelled before its first step.
            self._tasks.discard(task)
            writer.close()

        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


class Link(Listener):
    """From one client to one server. Faults: `refusing`, `delay_s`, `before` and `after` hooks.

    A hook may wait (the request, or the reply, is held meanwhile) or raise `Link.swallow` (it vanishes) or
    `Link.reset` (the connection ends with RST).
    """

    swallow = Fate("reply lost")
    reset = Fate("connection reset")

    def __init__(self, client: str, server: LabServer, report: Callable[[Request], None]) -> None:
        super().__init__()
        self.client = client
        self.server = server
        self.refusing = False
        self.delay_s = 0.0
        self.before: Hook | None = None
        self.after: Hook | None = None
        self._report = report
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        await super().close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing or self._closed:
            writer.transport.abort()
            return
        super()._accept(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _Wire(self, reader, writer).run()
        except Fate:
            _make_reset(writer)
        except OSError:
            pass  # one of the two ends has gone

    def say(self, request: Request) -> None:
        self._report(request)


class _Wire:
    """One connection."""

    def __init__(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._link = link
        self._reader, self._writer = reader, writer
        self._requests: asyncio.Queue[tuple[bytes, list[str]]] = asyncio.Queue()
        self._answer: asyncio.Future[tuple[bytes, Any]] | None = None
        self._streaming = False

    async def run(self) -> None:
        up_reader, up_writer = await self._link.server.connect()
        parts = [
            asyncio.ensure_future(self._read_client()),
            asyncio.ensure_future(self._read_server(up_reader)),
            asyncio.ensure_future(self._pass_on(up_writer)),
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            for part in parts:
                part.cancel()
            up_writer.close()  # first: what follows may be cancelled
            await asyncio.gather(*parts, return_exceptions=True)

    async def _read_client(self) -> None:
        frames = Frames()
        while data := await self._reader.read(65536):
            frames.feed(data)
            while (frame := frames.next()) is not None:
                raw, value = frame
                words = [w.decode(errors="backslashreplace") if isinstance(w, bytes) else str(w) for w in value or ()]
                self._requests.put_nowait((raw, words))

    async def _read_server(self, reader: asyncio.StreamReader) -> None:
        frames = Frames()
        while data := await reader.read(65536):
            frames.feed(data)
            while (frame := frames.next()) is not None:
                value = frame[1]
                pushed = isinstance(value, Push) or (
                    self._streaming and isinstance(value, list) and bool(value) and value[0] in _PUSHED
                )
                if pushed or self._answer is None or self._answer.done():
                    self._writer.write(frame[0])
                else:
                    self._answer.set_result(frame)

    async def _pass_on(self, up: asyncio.StreamWriter) -> None:
        link = self._link
        while True:
            raw, words = await self._requests.get()
            request = Request(link.client, link.server.name, words, time.monotonic_ns())
            if request.verb in _SUBSCRIBING:
                self._streaming = True
                up.write(raw)
                continue
            if not request.is_step:
                up.write(raw)
                await self._reply_of(request)
                continue
            try:
                if link.before is not None:
                    await link.before(request)
                if request.verb in _BLOCKING:
                    up.write(raw)
                    await self._reply_of(request, forward=False)
                else:
                    async with link.server.turn:
                        await link.server.look(by=None)
                        request.at_ns = time.monotonic_ns()
                        up.write(raw)
                        await self._reply_of(request, forward=False)
                        request.changed = await link.server.look(by=request.client, verb=request.verb)
                if link.after is not None:
                    await link.after(request)
                if link.delay_s:
                    await asyncio.sleep(link.delay_s)
                link.say(request)
            except Fate as fate:
                request.fate = fate.what
                link.say(request)
                if fate is Link.reset:
                    raise
                continue
            except asyncio.CancelledError:
                request.fate = request.fate or ("unanswered" if request.answered_ns is None else "not delivered")
                link.say(request)
                raise
            self._writer.write(self._raw)

    async def _reply_of(self, request: Request, forward: bool = True) -> None:
        self._answer = asyncio.get_running_loop().create_future()
        self._raw, request.reply = await self._answer
        request.answered_ns = time.monotonic_ns()
        if forward:
            self._writer.write(self._raw)


def _make_reset(writer: asyncio.StreamWriter) -> None:
    """Closing now sends RST instead of FIN."""
    with contextlib.suppress(OSError):
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
