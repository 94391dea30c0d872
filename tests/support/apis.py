"""Both APIs behind one blocking interface, so that a contract is written once.

The asyncio api lives on an event loop in a thread of its own, or on a run of trio; every coroutine method is called
through it. Objects of the api that come back are wrapped in turn.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import trio

from testbed.servers import unique
from testbed.waiting import PATIENCE_S
from tests.support.steps import arun_steps, run_steps

__all__ = [
    "APIS",
    "MORE_APIS",
    "Actor",
    "Api",
    "AsyncioApi",
    "ThreadsApi",
    "TrioApi",
    "close_brought",
    "function_for",
    "warm",
]


class Actor:
    """One thread, or one task, that does what it is told in turn: for what only the holder itself may do."""

    def tell(self, target: Any, method: str, *args: Any, **options: Any) -> Future[Any]:
        """Let it call a method; the future has the result."""
        raise NotImplementedError

    def ask(self, target: Any, method: str, *args: Any, **options: Any) -> Any:
        """Let it call a method, and wait for the result."""
        return self.tell(target, method, *args, **options).result(PATIENCE_S * 2)

    def enter(self, target: Any) -> Any:
        """`with target` begins in it."""
        return self.ask(target, "__enter__")

    def leave(self, target: Any) -> None:
        """`with target` ends in it."""
        self.ask(target, "__exit__", None, None, None)

    def close(self) -> None:
        raise NotImplementedError


class _ThreadActor(Actor):
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="actor")

    def tell(self, target: Any, method: str, *args: Any, **options: Any) -> Future[Any]:
        return self._thread.submit(getattr(target, method), *args, **options)

    def close(self) -> None:
        self._thread.shutdown()


class _TaskActor(Actor):
    def __init__(self, api: AsyncioApi) -> None:
        self._api = api
        self._put, self._get = api.mailbox()
        self._done = api.begin(self._main())

    async def _main(self) -> None:
        while (job := await self._get()) is not None:
            await job()

    def tell(self, target: Any, method: str, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        inner = target._target if isinstance(target, _Blocking) else target
        name = method.replace("__e", "__ae")

        async def job() -> None:
            try:
                result = getattr(inner, name)(*args, **options)
                future.set_result(self._api.wrap(await result if inspect.isawaitable(result) else result))
            except Exception as error:
                future.set_exception(error)

        self._api.soon(self._put, job)
        return future

    def close(self) -> None:
        self._api.soon(self._put, None)
        self._done.result(PATIENCE_S * 2)


class Api:
    """What a contract test uses: clients, and calls that run beside the test."""

    name = ""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=64, thread_name_prefix="test")
        self._clients: list[Any] = []
        self._actors: list[Actor] = []

    def actor(self) -> Actor:
        """A thread or task that does what it is told."""
        actor = self._new_actor()
        self._actors.append(actor)
        return actor

    def _new_actor(self) -> Actor:
        raise NotImplementedError

    def module(self) -> Any:
        raise NotImplementedError

    def redis(self) -> Any:
        """The module of redis-py that fits the API."""
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
        for actor in self._actors:
            actor.close()
        self._pool.shutdown()


class ThreadsApi(Api):
    name = "threads"

    def _new_actor(self) -> Actor:
        return _ThreadActor()

    def module(self) -> Any:
        import holdfast

        return holdfast

    def redis(self) -> Any:
        import redis

        return redis


#: Whose objects have coroutine methods, or belong to a thread.
_WRAPPED = ("holdfast._async.", "holdfast.compat.redis._async.", "holdfast.compat.redis.hooks")


class AsyncioApi(Api):
    name = "asyncio"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="api-loop", daemon=True)
        self._thread.start()

    def _new_actor(self) -> Actor:
        return _TaskActor(self)

    def module(self) -> Any:
        return importlib.import_module("holdfast.asyncio")

    def redis(self) -> Any:
        import redis.asyncio

        return redis.asyncio

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run it in a task."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Call it in the loop's thread."""
        self.loop.call_soon_threadsafe(function, *args)

    def mailbox(self) -> tuple[Callable[[Any], None], Callable[[], Awaitable[Any]]]:
        """Return what puts something there, in the loop's thread, and what waits for it."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        return queue.put_nowait, queue.get

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.begin(coroutine).result(PATIENCE_S * 2)

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call in the loop's thread, as a user's coroutine would; await what is awaitable."""

        async def inside() -> Any:
            result = function(*args, **options)
            return await result if inspect.isawaitable(result) else result

        return self.run(inside())

    def wrap(self, value: Any) -> Any:
        module = type(value).__module__
        return _Blocking(self, value) if module.startswith(_WRAPPED) else value

    def close(self) -> None:
        super().close()
        self.run(_turns())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class TrioApi(AsyncioApi):
    """The asyncio API on a run of trio."""

    def __init__(self) -> None:
        Api.__init__(self)
        started: Future[tuple[Any, Any, Any]] = Future()
        self._thread = threading.Thread(target=trio.run, args=(self._main, started), name="api-run", daemon=True)
        self._thread.start()
        self._token, self._nursery, self._end = started.result(PATIENCE_S)

    async def _main(self, started: Future[tuple[Any, Any, Any]]) -> None:
        end = trio.Event()
        async with trio.open_nursery() as nursery:
            started.set_result((trio.lowlevel.current_trio_token(), nursery, end))
            await end.wait()

    def module(self) -> Any:
        return importlib.import_module("holdfast.trio")

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        future: Future[Any] = Future()

        async def task() -> None:
            try:
                future.set_result(await coroutine)
            except trio.Cancelled:
                raise
            except BaseException as error:
                future.set_exception(error)

        self.soon(self._nursery.start_soon, task)
        return future

    def soon(self, function: Callable[..., Any], *args: Any) -> None:
        self._token.run_sync_soon(function, *args)

    def mailbox(self) -> tuple[Callable[[Any], None], Callable[[], Awaitable[Any]]]:
        put, get = trio.open_memory_channel[Any](math.inf)
        return put.send_nowait, get.receive

    def close(self) -> None:
        Api.close(self)
        self.soon(self._end.set)
        self._thread.join()


async def _turns() -> None:
    """Turn the loop until what was aborted has ended (a TLS handshake takes a few turns); `asyncio.run` does so."""
    for _ in range(10):
        await asyncio.sleep(0)


class _Blocking:
    """An object of the asyncio API whose coroutine methods block."""

    def __init__(self, api: AsyncioApi, target: Any) -> None:
        self._api = api
        self._target = target
        self._inside: list[tuple[Callable[[Any], None], Future[None]]] = []

    def __getattr__(self, name: str) -> Any:
        value = self._api.call(getattr, self._target, name)
        if not callable(value) or isinstance(value, type):
            return self._api.wrap(value)

        def method(*args: Any, **options: Any) -> Any:
            return self._api.wrap(self._api.call(value, *args, **options))

        return method

    def __repr__(self) -> str:
        return repr(self._target)

    def __enter__(self) -> Any:
        """Enter in a task of its own, which leaves when told to: `async with` belongs to one task."""
        entered: Future[Any] = Future()
        leave, left_by = self._api.mailbox()

        async def body() -> None:
            async with self._target as value:
                entered.set_result(value)
                if (error := await left_by()) is not None:
                    raise error

        left = self._api.begin(body())
        left.add_done_callback(
            lambda done: None if entered.done() else entered.set_exception(done.exception() or RuntimeError())
        )
        self._inside.append((leave, left))
        return self._api.wrap(entered.result(PATIENCE_S * 2))

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        leave, left = self._inside.pop()
        self._api.soon(leave, error)
        try:
            left.result(PATIENCE_S * 2)
        except BaseException as raised:
            if raised is not error:
                raise


def warm(locks: Any) -> None:
    """Have the scripts of a lock's life loaded."""
    lease = locks.lock(unique("warm")).acquire()
    lease.extend(30)
    lease.release()


def close_brought(api: Api, client: Any) -> None:
    """Close a client of redis-py that a test has brought: holdfast leaves that to its owner."""
    if isinstance(api, AsyncioApi):
        api.call(client.aclose)
    else:
        client.close()


def function_for(api: Api, plain: Callable[..., Any]) -> Any:
    """The function as the API wants it: for asyncio a coroutine function that awaits what its steps give."""
    if api.name == "threads":

        def run(*args: Any, **options: Any) -> Any:
            return run_steps(plain(*args, **options))

        return run

    async def arun(*args: Any, **options: Any) -> Any:
        return await arun_steps(plain(*args, **options))

    return arun


APIS: dict[str, type[Api]] = {"threads": ThreadsApi, "asyncio": AsyncioApi}
#: What else the contract is tested on.
MORE_APIS: dict[str, type[Api]] = {"trio": TrioApi}
