"""A relay before a server, in the event loop of the test: slow, or with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from holdfast import embedded

__all__ = ["relay"]


@contextlib.asynccontextmanager
async def relay(
    server: embedded.Server, *, delay_s: float = 0.0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """The port of the relay. Whatever is sent in either direction is passed on after `delay_s`."""
    writers: set[asyncio.StreamWriter] = set()
    serving: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)  # first: its task may be cancelled before it begins
        serving.add(asyncio.ensure_future(serve(reader, writer)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(server.host, server.port)
        writers.add(there[1])
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if delay_s:
                    await asyncio.sleep(delay_s)
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        for _ in range(5):  # what was accepted in this moment has no transport yet, and needs its listener until then
            await asyncio.sleep(0)
        listening.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        for writer in writers:
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()
