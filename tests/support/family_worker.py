"""A process of its own that holds, or waits for, one of everything: to be killed.

`python -m tests.support.family_worker API URL holders|waiters NAME TTL COUNT SHIFT`. `holders` takes COUNT of each
and says their tokens in one line of JSON; `waiters` begins to wait for one of each, which takes a thread or task each,
and says "waiting". Both then stay until their input ends. SHIFT: by how many seconds its wall clock is wrong.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import holdfast
from tests.support.steps import arun_steps, run_steps

__all__ = ["HELD", "WAITED_FOR", "FamilyWorker"]

#: What is done, as a generator of the API's calls: each is awaited where it has to be.
Steps: TypeAlias = Generator[Any, Any, Any]


def _reader(locks: Any, name: str, ttl: float) -> Steps:
    return (yield locks.rwlock(name, ttl=ttl).read().acquire())


def _writer(locks: Any, name: str, ttl: float) -> Steps:
    return (yield locks.rwlock(name, ttl=ttl).write().acquire())


def _upgraded(locks: Any, name: str, ttl: float) -> Steps:
    reader = yield locks.rwlock(name, ttl=ttl).read().acquire()
    writer = yield reader.upgrade()
    _kept.append(writer)
    return reader


def _permits(locks: Any, name: str, ttl: float) -> Steps:
    return (yield locks.semaphore(name, 3, ttl=ttl).acquire(permits=2))


def _several(locks: Any, name: str, ttl: float) -> Steps:
    return (yield locks.multilock(name, f"{name}-2", f"{name}-3", ttl=ttl).acquire())


def _reentrant(locks: Any, name: str, ttl: float) -> Steps:
    lock = locks.lock(name, ttl=ttl, reentrant=True)
    _kept.append((yield lock.acquire()))
    return (yield lock.acquire())


def _after_a_wait(locks: Any, name: str, ttl: float) -> Steps:
    """Holds the lock again after it has waited on its condition."""
    lock = locks.lock(name, ttl=ttl)
    lease = yield lock.acquire()
    yield locks.condition(lock).wait(timeout=0.01)
    return lease


def _leader(locks: Any, name: str, ttl: float) -> Steps:
    return (yield locks.election(name, ttl=ttl).campaign())


def _notified(locks: Any, name: str, ttl: float) -> Steps:
    lock = locks.lock(name, ttl=ttl)
    _kept.append((yield lock.acquire()))
    yield locks.condition(lock).wait()


def _latch(locks: Any, name: str, ttl: float) -> Steps:
    yield locks.latch(name, 1).wait()


def _event(locks: Any, name: str, ttl: float) -> Steps:
    yield locks.event(name).wait()


def _barrier(locks: Any, name: str, ttl: float) -> Steps:
    yield locks.barrier(name, 2).wait()


HELD: dict[str, Callable[[Any, str, float], Steps]] = {
    "reader": _reader,
    "writer": _writer,
    "upgraded": _upgraded,
    "permits": _permits,
    "several": _several,
    "reentrant": _reentrant,
    "condition": _after_a_wait,
    "leader": _leader,
}
WAITED_FOR: dict[str, Callable[[Any, str, float], Steps]] = {
    "reader": _reader,
    "writer": _writer,
    "permits": _permits,
    "several": _several,
    "reentrant": _reentrant,
    "leader": _leader,
    "condition": _notified,
    "latch": _latch,
    "event": _event,
    "barrier": _barrier,
}

_kept: list[Any] = []


def _names(name: str, count: int) -> list[tuple[str, str]]:
    return [(kind, f"{name}-{kind}-{number}") for kind in HELD for number in range(count)]


def _threads(url: str, role: str, name: str, ttl: float, count: int) -> None:
    locks = holdfast.connect(url)
    if role == "holders":
        tokens = {}
        for kind, each in _names(name, count):
            lease = run_steps(HELD[kind](locks, each, ttl))
            _kept.append(lease)
            tokens[each] = lease.token
        print(json.dumps(tokens), flush=True)
    else:
        for kind, steps in WAITED_FOR.items():
            threading.Thread(target=run_steps, args=(steps(locks, f"{name}-{kind}", ttl),), daemon=True).start()
        print(json.dumps("waiting"), flush=True)
    sys.stdin.read()


async def _asyncio(url: str, role: str, name: str, ttl: float, count: int) -> None:
    locks = importlib.import_module("holdfast.asyncio").connect(url)
    if role == "holders":
        tokens = {}
        for kind, each in _names(name, count):
            lease = await arun_steps(HELD[kind](locks, each, ttl))
            _kept.append(lease)
            tokens[each] = lease.token
        print(json.dumps(tokens), flush=True)
    else:
        for kind, steps in WAITED_FOR.items():
            _kept.append(asyncio.create_task(arun_steps(steps(locks, f"{name}-{kind}", ttl))))
        print(json.dumps("waiting"), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


class FamilyWorker:
    """The parent's end."""

    def __init__(
        self, api: str, url: str, role: str, name: str, ttl: float, count: int = 1, shift_s: float = 0.0
    ) -> None:
        words = [api, url, role, name, str(ttl), str(count), str(shift_s)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.family_worker", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def said(self) -> Any:
        """Wait for the worker's one line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the worker ended early"
        return json.loads(line)

    def kill(self) -> None:
        """SIGKILL, and its end."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


if __name__ == "__main__":
    _api, _url, _role, _name, _ttl, _count, _shift = sys.argv[1:]
    _true_time, _shift_s = time.time, float(_shift)
    time.time = lambda: _true_time() + _shift_s
    if _api == "threads":
        _threads(_url, _role, _name, float(_ttl), int(_count))
    else:
        asyncio.run(_asyncio(_url, _role, _name, float(_ttl), int(_count)))
