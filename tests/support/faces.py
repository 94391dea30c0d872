"""Both faces behind one blocking interface, so that a contract is written once.

The asyncio face lives on an event loop in a thread of its own; every coroutine method is called through it.
Objects of the face that come back are wrapped in turn.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["FACES", "AsyncioFace", "Face", "ThreadsFace", "eventually"]

#: Whatever a test waits for comes much sooner on an idle machine; on a busy one it may take its time.
PATIENCE_S = 30.0


def eventually(condition: Callable[[], Any], what: str = "", patience_s: float = PATIENCE_S) -> Any:
    """The first true value of `condition()`; fails after `patience_s`."""
    until = time.monotonic() + patience_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"did not happen within {patience_s} s: {what or condition}"
        time.sleep(0.005)


class Face:
    """What a contract test uses: clients, and calls that run beside the test."""

    name = ""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=64, thread_name_prefix="test")
        self._clients: list[Any] = []

    def module(self) -> Any:
        raise NotImplementedError

    def redis(self) -> Any:
        """The module of redis-py that fits the face."""
        raise NotImplementedError

    def connect(self, url: str, **options: Any) -> Any:
        client = self.wrap(self.module().connect(url, **options))
        self._clients.append(client)
        return client

    def client(self, redis_client: Any, **options: Any) -> Any:
        client = self.wrap(self.module().Client(redis_client, **options))
        self._clients.append(client)
        return client

    def wrap(self, value: Any) -> Any:
        return value

    def start(self, function: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        """Call it in another thread; the future has the result."""
        return self._pool.submit(function, *args, **options)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._pool.shutdown()


class ThreadsFace(Face):
    name = "threads"

    def module(self) -> Any:
        import holdfast

        return holdfast

    def redis(self) -> Any:
        import redis

        return redis


class AsyncioFace(Face):
    name = "asyncio"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="face-loop", daemon=True)
        self._thread.start()

    def module(self) -> Any:
        return importlib.import_module("holdfast.asyncio")

    def redis(self) -> Any:
        import redis.asyncio

        return redis.asyncio

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S * 2)

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call in the loop's thread, as a user's coroutine would; await what is awaitable."""

        async def inside() -> Any:
            result = function(*args, **options)
            return await result if inspect.isawaitable(result) else result

        return self.run(inside())

    def wrap(self, value: Any) -> Any:
        module = type(value).__module__
        return _Blocking(self, value) if module.startswith("holdfast._faces.aio") else value

    def close(self) -> None:
        super().close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class _Blocking:
    """An object of the asyncio face whose coroutine methods block."""

    def __init__(self, face: AsyncioFace, target: Any) -> None:
        self._face = face
        self._target = target
        self._inside: list[tuple[Any, Future[None]]] = []

    def __getattr__(self, name: str) -> Any:
        value = self._face.call(getattr, self._target, name)
        if not callable(value) or isinstance(value, type):
            return self._face.wrap(value)

        def method(*args: Any, **options: Any) -> Any:
            return self._face.wrap(self._face.call(value, *args, **options))

        return method

    def __repr__(self) -> str:
        return repr(self._target)

    def __enter__(self) -> Any:
        """Enter in a task of its own, which leaves when told to: `async with` belongs to one task."""
        entered: Future[Any] = Future()
        leave = self._face.loop.create_future()

        async def body() -> None:
            async with self._target as value:
                entered.set_result(value)
                await leave

        left = asyncio.run_coroutine_threadsafe(body(), self._face.loop)
        left.add_done_callback(
            lambda done: None if entered.done() else entered.set_exception(done.exception() or RuntimeError())
        )
        self._inside.append((leave, left))
        return self._face.wrap(entered.result(PATIENCE_S * 2))

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        leave, left = self._inside.pop()

        def end() -> None:
            if not leave.done():
                if error is None:
                    leave.set_result(None)
                else:
                    leave.set_exception(error)

        self._face.loop.call_soon_threadsafe(end)
        try:
            left.result(PATIENCE_S * 2)
        except BaseException as raised:
            if raised is not error:
                raise


FACES: dict[str, type[Face]] = {"threads": ThreadsFace, "asyncio": AsyncioFace}
