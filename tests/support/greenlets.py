"""A program under gevent or eventlet: `python -m tests.support.greenlets LIBRARY WHEN URL PID ACTION…`.

WHEN says what happens before the process is patched. Prints one JSON object for each action.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

LIBRARY, WHEN, URL, PID = sys.argv[1:5]
ACTIONS = sys.argv[5:]

#: Bounds every wait of this program, s.
PATIENCE_S = 30.0


def patch(**options: bool) -> None:
    if LIBRARY == "gevent":
        importlib.import_module("gevent.monkey").patch_all(**options)
    else:
        importlib.import_module("eventlet").monkey_patch(**options)


class Greenlets:
    """What both libraries have, under one name."""

    def __init__(self) -> None:
        self._library: Any = importlib.import_module(LIBRARY)
        self.sleep = self._library.sleep

    def all(self, functions: list[Callable[[], Any]]) -> list[Any]:
        """Run all at the same time; returns what each gives or raises, as text."""
        results: list[Any] = ["did not end"] * len(functions)

        def call(index: int, function: Callable[[], Any]) -> None:
            try:
                results[index] = function()
            except Exception as error:
                results[index] = f"{type(error).__name__}: {error}"

        spawned = [self._library.spawn(call, index, function) for index, function in enumerate(functions)]
        until = time.monotonic() + PATIENCE_S
        while not all(self._ended(one) for one in spawned) and time.monotonic() < until:
            self.sleep(0.005)
        return results

    @staticmethod
    def _ended(greenlet: Any) -> bool:
        return bool(greenlet.dead)


def made() -> Any:
    import holdfast

    return holdfast.connect(URL)


def prepare() -> Any:
    """The client, and patch at the time that WHEN says."""
    if WHEN == "first":
        patch()
        return made()
    client: Any = None
    if WHEN == "half":
        patch(**({"thread": False} if LIBRARY == "gevent" else {"socket": True}))
        return made()
    if WHEN == "imported":
        importlib.import_module("holdfast._sync.semaphore")
        patch()
        return made()
    client = made()
    if WHEN == "made":
        patch()
        return client
    waiter = threading.Thread(target=lambda: client.lock("warm").acquire(timeout=10).release())
    with client.lock("warm"):
        if WHEN == "contended":
            waiter.start()
            while not client.lock("warm").waiters():
                time.sleep(0.01)
    if WHEN == "contended":
        waiter.join()
    if WHEN == "preloaded":
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            os._exit(os.waitstatus_to_exitcode(status))
    if WHEN == "half later":
        patch(**({"thread": False} if LIBRARY == "gevent" else {"socket": True}))
        return client
    patch()
    return client


def crowd(client: Any, library: Greenlets, make: Callable[[], Any], size: int = 100) -> dict[str, Any]:
    """Many greenlets at one lock: how many were inside at most, and what became of them."""
    inside: list[int] = []
    most = 0

    def work(number: int) -> str:
        nonlocal most
        with make() as lease:
            inside.append(number)
            most = max(most, len(inside))
            library.sleep(0.002)
            lease.ensure_held()
            inside.remove(number)
        return "done"

    results = library.all([lambda number=number: work(number) for number in range(size)])  # type: ignore[misc]
    return {"most": most, "results": sorted(set(results)), "done": results.count("done")}


def line(client: Any, library: Greenlets) -> dict[str, Any]:
    """Greenlets of one client hand a lock on among themselves."""
    tokens: list[str] = []
    inside: list[str] = []

    def work() -> str:
        with locks.lock("line", ttl=20) as lease:
            inside.append(lease.token)
            tokens.append(lease.token)
            library.sleep(0.001)
            lease.ensure_held()
            inside.remove(lease.token)
            return "alone" if not inside else "not alone"

    import holdfast

    with holdfast.connect(URL, tenure=0.1) as locks:
        results = library.all([work] * 50)
        lines = len(locks._session.driver.lines)
    return {"results": sorted(set(results)), "leases": len(tokens), "tokens": len(set(tokens)), "lines": lines}


def hanging(client: Any, library: Greenlets) -> dict[str, Any]:
    """`acquire(timeout=0.5)` at a server that has stopped, while others go on."""
    with client.lock("hang"):
        pass
    os.kill(int(PID), signal.SIGSTOP)
    ticks = 0
    begun = time.monotonic()

    def tick() -> str:
        nonlocal ticks
        while time.monotonic() - begun < 0.4:
            library.sleep(0.01)
            ticks += 1
        return "ticked"

    def acquire() -> str:
        client.lock("hang").acquire(timeout=0.5)
        return "acquired"

    try:
        results = library.all([acquire, tick])
    finally:
        took_s = time.monotonic() - begun
        os.kill(int(PID), signal.SIGCONT)
    return {"result": results[0].partition(":")[0], "ticks": ticks, "took_s": took_s}


def life(client: Any, library: Greenlets) -> dict[str, Any]:
    """Renewals, a timeout, a handoff, reentrancy by greenlet, a loss."""
    lock = client.lock("life", ttl=5, reentrant=True)  # a busy machine holds up a renewal by seconds
    lease = lock.acquire()
    renewals = {lease._record.renew_from}
    while lease.held and len(renewals) < 3:
        library.sleep(0.1)
        renewals.add(lease._record.renew_from)
    renewed = lease.state.name
    with lock as again:
        same = again is lease

    def outsider() -> str:
        try:
            lock.acquire(timeout=0.1)
        except Exception as error:
            return type(error).__name__
        return "inside"

    def next_holder() -> str:
        with lock.acquire(timeout=20) as theirs:
            return "handed over" if theirs is not lease else "inside"

    outsiders = library.all([outsider, outsider])

    def let_go() -> str:
        while lease.held and not lock.waiters():
            library.sleep(0.01)
        lease.release()
        return "released"

    handed = library.all([next_holder, let_go])
    semaphore = client.semaphore("life", permits=2)
    permits = crowd(client, library, lambda: semaphore)
    return {"renewed": renewed, "same": same, "outsiders": outsiders, "handed": handed, "permits": permits["most"]}


def quorum(client: Any, library: Greenlets) -> dict[str, Any]:
    import holdfast

    url, port = URL.rsplit(":", 1)[0], int(URL.rsplit(":", 1)[1].partition("/")[0])
    ports = [port, *map(int, os.environ["MORE_PORTS"].split(","))]
    with holdfast.Client.quorum([f"{url}:{each}" for each in ports], restart_delay=0, ttl=10) as locks:
        return crowd(locks, library, lambda: locks.lock("voted"), 10)


def main() -> None:
    try:
        client = prepare()
    except Exception as error:
        print(json.dumps({"refused": f"{type(error).__name__}: {error}"}), flush=True)
        return
    library = Greenlets()
    actions: dict[str, Callable[[], dict[str, Any]]] = {
        "line": lambda: line(client, library),
        "crowd": lambda: crowd(client, library, lambda: client.lock("crowd", reentrant=True, ttl=20)),
        "hanging": lambda: hanging(client, library),
        "life": lambda: life(client, library),
        "quorum": lambda: quorum(client, library),
    }
    for action in ACTIONS:
        print(json.dumps(actions[action]()), flush=True)
    begun = time.monotonic()
    client.close()
    print(json.dumps({"closed_s": time.monotonic() - begun}), flush=True)


main()
sys.stdout.flush()
os._exit(0)  # what gevent has left of threads of before the patch is not what is tested
