"""A user's lock behind the lab's interface, with plain methods or with coroutines.

Law: only a documented loss counts as a loss: a check that returns False, or an exception that `says_lost` knows. What
else a check raises is a failure of the lock, and reaches the lab.

Theory: coroutines run on an event loop of the client's own thread, so that a client that is stopped stands still
altogether. The loop turns while the client waits, too: a task that renews a lock does its work.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import socket
import time
from collections.abc import Callable
from typing import Any

from holdfast_lab.handle import Handle, Setup

__all__ = ["LOSSES", "UserHandle", "load_factory", "says_lost"]

#: How the name of an exception ends that says "the lock is not held", a further "Error" or "Exception" left out: those
#: of redis-py and valkey-py (LockError and what derives from it), holdfast (LeaseLost, NotHeld) and python-redis-lock
#: (NotAcquired) among them. docs/cli.md has the same list.
LOSSES = (
    *("LockError", "LockException", "LockLost", "LeaseLost", "LockExpired", "LeaseExpired"),
    *("NotHeld", "NotOwned", "NotLocked", "NotAcquired"),
)


def says_lost(error: BaseException) -> bool:
    """True if the name of the exception's class, or of a class that it derives from, ends in one of `LOSSES`."""
    names = [kind.__name__ for kind in type(error).__mro__]
    return any(name.removesuffix("Error").removesuffix("Exception").endswith(LOSSES) for name in names) or any(
        name.endswith(LOSSES) for name in names
    )


class UserHandle(Handle):
    """Anything with acquire and release, or lock and unlock, or a context manager, made by a user's factory."""

    def __init__(self, factory: Callable[..., Any], setup: Setup) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = self._call(lambda: _call_factory(factory, setup))
        self._lease: Any = None
        ways = ("try_acquire", "try_lock", "acquire", "lock", "__aenter__", "__enter__")
        self._ask = _first_of(self._lock, *ways)
        if self._ask is None:
            raise TypeError(f"{type(self._lock).__name__} has none of {', '.join(ways)}")

    def try_acquire(self) -> bool:
        assert self._ask is not None
        ask = self._ask
        blocking = "blocking" in _parameters(ask)
        got = self._call(lambda: ask(blocking=False) if blocking else ask())
        if ask.__name__ in ("acquire", "lock", "__aenter__", "__enter__") and got is None and not blocking:
            got = True  # it came back: that is its answer
        self._lease = got if callable(getattr(got, "release", None)) else None
        return self._lease is not None or bool(got)

    def release(self) -> None:
        if self._lease is not None:
            self._call(self._lease.release)
        elif (give_back := _first_of(self._lock, "release", "unlock")) is not None:
            self._call(give_back)
        else:
            leave = _first_of(self._lock, "__aexit__", "__exit__")
            if leave is None:
                raise TypeError(f"{type(self._lock).__name__} has none of release, unlock, __aexit__, __exit__")
            self._call(lambda: leave(None, None, None))

    def fence(self) -> int | None:
        token = getattr(self._lease if self._lease is not None else self._lock, "fencing_token", None)
        return token if isinstance(token, int) else None

    def valid_until_ns(self) -> int | None:
        remaining = getattr(self._lease if self._lease is not None else self._lock, "remaining", None)
        if not callable(remaining):
            return None
        asked_ns = time.monotonic_ns()
        with contextlib.suppress(Exception):
            left_s = self._call(remaining)
            if isinstance(left_s, int | float):
                return asked_ns + int(left_s * 1e9)
        return None

    def is_lost(self) -> bool:
        check = getattr(self._lease if self._lease is not None else self._lock, "ensure_held", None)
        if check is None:
            return False
        try:
            return self._call(check) is False
        except Exception as error:
            if says_lost(error):
                return True
            raise

    def close(self) -> None:
        if self._loop is not None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            with contextlib.suppress(Exception):
                self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    def wait_readable(self, channel: socket.socket, timeout_s: float | None) -> bool:
        if self._loop is None or timeout_s == 0:
            return super().wait_readable(channel, timeout_s)
        return self._loop.run_until_complete(_readable(channel, timeout_s))

    def sleep(self, seconds: float) -> None:
        if self._loop is None:
            super().sleep(seconds)
        else:
            self._loop.run_until_complete(asyncio.sleep(seconds))

    def _call(self, function: Callable[[], Any]) -> Any:
        """The result of the call, awaited where it has to be."""
        if self._loop is None:
            try:
                result = function()
            except RuntimeError as error:
                if "event loop" not in str(error):
                    raise
                return self._on_loop(function)
            return self._on_loop(lambda: result) if inspect.isawaitable(result) else result
        return self._on_loop(function)

    def _on_loop(self, function: Callable[[], Any]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()

        async def called() -> Any:
            result = function()
            return await result if inspect.isawaitable(result) else result

        return self._loop.run_until_complete(called())


async def _readable(channel: socket.socket, timeout_s: float | None) -> bool:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(channel, ready.set)
    try:
        async with asyncio.timeout(timeout_s):
            await ready.wait()
    except TimeoutError:
        pass
    finally:
        loop.remove_reader(channel)
    return ready.is_set()


def _first_of(thing: Any, *names: str) -> Callable[..., Any] | None:
    """The first of these methods that it has."""
    found = (getattr(thing, name, None) for name in names)
    return next((method for method in found if callable(method)), None)


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _call_factory(factory: Callable[..., Any], setup: Setup) -> Any:
    offered = {"url": setup.url, "name": setup.name, "ttl": setup.ttl_ms / 1000, "urls": setup.urls}
    taken = _parameters(factory)
    if taken & offered.keys():
        return factory(**{name: value for name, value in offered.items() if name in taken})
    return factory(setup.url, setup.name, setup.ttl_ms / 1000)


def load_factory(spec: str) -> Callable[..., Any]:
    """The callable behind ``MODULE:FACTORY``.

    Raises:
        ValueError: it has another form, or there is no such module or name in it, or it cannot be called.
    """
    module_name, colon, attribute = spec.partition(":")
    if not colon or not module_name or not attribute:
        raise ValueError(f"{spec!r} is not MODULE:FACTORY, as in mypackage.locks:make_lock")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"{spec!r}: module {module_name!r} cannot be imported: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = ", ".join(sorted(name for name in vars(found) if not name.startswith("_"))[:20])
            raise ValueError(f"{spec!r}: {module_name} has no {part!r} (it has: {names})")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{spec!r} is not callable: a factory takes (url, name, ttl) and returns a lock")
    factory: Callable[..., Any] = found
    return factory
