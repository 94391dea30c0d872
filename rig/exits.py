"""Ways to end a process while it holds locks and others of its threads wait for them.

Where Python runs anything at its end, no one has to wait for a ttl afterwards: the locks of a *graceful* end are free
at once, which `rig.crew` looks at from outside.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any

from rig.state import LifeState

__all__ = ["EXITED_BY_HANDLER", "EXITS", "GRACEFUL", "STATUS", "leave", "register_early"]

#: By API. Each is the name of what is done.
EXITS: dict[str, tuple[str, ...]] = {
    "threads": (
        *("return", "sys.exit", "an exception", "SIGINT", "SIGTERM", "SIGTERM with sys.exit", "SIGTERM with close()"),
        *("SIGKILL", "os._exit", "daemon threads", "atexit before the import", "atexit after the import"),
    ),
    "asyncio": ("return", "sys.exit", "an exception", "SIGINT", "SIGTERM", "SIGKILL", "os._exit", "without close()"),
    "gevent": ("return",),
}
#: A handler of SIGTERM raises SystemExit.
EXITED_BY_HANDLER = ("SIGTERM with sys.exit", "SIGTERM with close()")
#: What the system or the program tells of it.
STATUS: dict[str, int] = {
    "sys.exit": 3,
    "SIGTERM with sys.exit": 3,
    "os._exit": 4,
    "an exception": 1,
    "SIGINT": -signal.SIGINT,
    "SIGTERM": -signal.SIGTERM,
    "SIGKILL": -signal.SIGKILL,
}
#: After these the locks are free at once. (Python runs nothing at the others; without close() the event loop is gone.)
GRACEFUL = frozenset(
    {"return", "sys.exit", "an exception", "SIGINT", "SIGTERM with sys.exit", "SIGTERM with close()"}
    | {"daemon threads", "atexit before the import", "atexit after the import"}
)
#: What an unhandled exception of ours says.
MARK = "the end of a life"

_late: list[Any] = []
#: Else the collector would have them before the end.
_kept: list[Any] = []


class _Ended(Exception):
    pass


def register_early() -> None:
    """Before holdfast is imported: runs after its own."""

    def late() -> None:
        for client in _late:
            try:
                lease = client.lock("torture-late").try_acquire()
                if lease is not None:
                    print("rig: a client has granted a lease after the end", file=sys.stderr)
            except Exception as error:
                if type(error).__name__ not in ("ClientClosed", "AcquireTimeout"):
                    print(f"rig: {type(error).__name__} at the end: {error}", file=sys.stderr)

    atexit.register(late)


def leave(life: LifeState) -> int:
    """Hold something, have someone wait for it, and go."""
    way: str = life.config["exit"]
    life.played[f"exit: {way}"] += 1
    life.settled()
    life.watch.begin("exit", f"the end by {way}", 30)
    if life.config["api"] == "asyncio":
        asyncio.run(_aleave(life, way))
        return 0
    return _leave(life, way)


def _ttl_s(way: str) -> float:
    return 60.0 if way in GRACEFUL else 1.0


def _leave(life: LifeState, way: str) -> int:
    client = life.connect()
    ttl_s, own = _ttl_s(way), f"own-{life.name}-exit"
    leases = []
    with contextlib.suppress(life.errors):
        leases = [client.lock(f"{own}-{number}", ttl=ttl_s).acquire(timeout=5) for number in range(3)]
        if not life.over_quorum:
            leases.append(client.rwlock(f"{own}-rw", ttl=ttl_s).write().acquire(timeout=5))
            leases.append(client.semaphore(f"{own}-sem", 1, ttl=ttl_s).acquire(timeout=5))
    stop = life._public.Cancel()
    _late.append(client)
    _kept.extend(leases)

    def wait(number: int) -> None:
        with contextlib.suppress(life.errors):
            if number < 3 or life.over_quorum:
                turn = client.lock(f"{own}-{number % 3}", ttl=ttl_s)
            elif number == 3:
                turn = client.rwlock(f"{own}-rw", ttl=ttl_s).read()
            else:
                turn = client.semaphore(f"{own}-sem", 1, ttl=ttl_s)
            if way == "daemon threads":
                while True:
                    with turn:
                        pass
            turn.acquire(timeout=None if daemon else 1.0, cancel=stop).release()

    daemon = way in ("daemon threads", "SIGTERM", "SIGKILL", "os._exit", "SIGINT") or life.config["seconds"] % 2 > 1
    threads = [threading.Thread(target=wait, args=(number,), daemon=daemon, name="rig-waits") for number in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)

    if way == "sys.exit":
        sys.exit(STATUS[way])
    if way == "an exception":
        raise _Ended(MARK)
    if way == "os._exit":
        os._exit(STATUS[way])
    if way in EXITED_BY_HANDLER:

        def handler(*_: Any) -> None:
            if way == "SIGTERM with close()":
                stop.set()
                client.close()
            sys.exit(STATUS.get(way, 0))

        signal.signal(signal.SIGTERM, handler)
    if way.startswith("SIG"):
        number = signal.Signals[way.split()[0]]
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        with contextlib.suppress(life.errors):
            client.lock(f"{own}-waited", ttl=ttl_s).acquire(timeout=1).release()
            while True:
                with client.lock(f"{own}-waited", ttl=ttl_s):
                    pass
        time.sleep(5)
        return 90
    if way == "atexit after the import":

        def at_the_end() -> None:
            try:
                client.lock(f"{own}-late", ttl=ttl_s).acquire(timeout=1)  # not released: that is ours to do
            except life.errors:
                pass

        atexit.register(at_the_end)
    return 0


async def _aleave(life: LifeState, way: str) -> None:
    ttl_s, own = _ttl_s(way), f"own-{life.name}-exit"
    client = life.connect()

    async def hold() -> None:
        leases = []
        with contextlib.suppress(life.errors):
            leases = [await client.lock(f"{own}-{number}", ttl=ttl_s).acquire(timeout=5) for number in range(3)]
            if not life.over_quorum:
                leases.append(await client.semaphore(f"{own}-sem", 1, ttl=ttl_s).acquire(timeout=5))
        tasks = [asyncio.create_task(wait(number)) for number in range(3)]
        await asyncio.sleep(0.1)
        if way == "sys.exit":
            sys.exit(STATUS[way])
        if way == "an exception":
            raise _Ended(MARK)
        if way == "os._exit":
            os._exit(STATUS[way])
        if way.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[way])
            await asyncio.sleep(5)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert leases or life.config["bound_s"] > 15

    async def wait(number: int) -> None:
        with contextlib.suppress(life.errors):
            async with client.lock(f"{own}-{number}", ttl=ttl_s):
                pass

    if way == "without close()":
        await hold()
        return
    async with client:
        await hold()
