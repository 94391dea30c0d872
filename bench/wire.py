"""A wire that takes its time: what lies between most clients and their servers, made on loopback.

    with wire.slow(run.server.url, 0.00025) as url: …

A process of its own, so that it takes no time from the interpreter that is measured. It waits with `select`, which
sleeps for parts of a millisecond; epoll rounds up to whole ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from urllib.parse import urlsplit

__all__ = ["slow"]


@contextlib.contextmanager
def slow(url: str, each_way_s: float) -> Iterator[str]:
    """A url that leads to the server; bytes take `each_way_s` longer in each direction."""
    where = urlsplit(url)
    words = [
        sys.executable,
        "-m",
        "bench.wire",
        where.hostname or "127.0.0.1",
        str(where.port or 6379),
        str(each_way_s),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()


class _End(asyncio.Protocol):
    """One end of a connection through here; `other` is the one that its bytes come out of."""

    def __init__(self, each_way_s: float) -> None:
        self._each_way_s = each_way_s
        self._loop = asyncio.get_running_loop()
        self._under_way: deque[bytes] = deque()
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._under_way.append(data)
        self._loop.call_later(self._each_way_s, self._arrive)

    def _arrive(self) -> None:
        data = self._under_way.popleft()  # what was sent first: timers of the same moment come in any order
        other = self.other
        if other is None or other.transport is None:  # the way to the server is not open yet
            self._under_way.appendleft(data)
            self._loop.call_later(self._each_way_s, self._arrive)
        elif not other.transport.is_closing():
            other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self._loop.call_later(2 * self._each_way_s, self.other.transport.close)


class _Near(_End):
    """The one that a client has connected to."""

    def __init__(self, host: str, port: int, each_way_s: float) -> None:
        super().__init__(each_way_s)
        self._host, self._port = host, port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        far = _End(self._each_way_s)
        far.other = self
        await self._loop.create_connection(lambda: far, self._host, self._port)
        self.other = far


async def _main(host: str, port: int, each_way_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Near(host, port, each_way_s), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
