"""A process that takes turns: `python -m rig.worker JSON`. Ends by SIGTERM, giving back what it holds."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from rig.history import Log, now_ns
from rig.locks import KINDS, Locks, Lost, Section
from rig.resource import Writer
from rig.trace import Trace, asks, queued_ns

#: Waiting for a turn ends after this, s.
_TIMEOUT_S = 5.0
#: Fraction of the stays that are longer than the ttl, where the library renews.
_LONG_SHARE = 0.01
#: And of those that only write once: several of them fit into the time for which a client hands a lock on by itself.
_BRIEF_SHARE = 0.6


class _Loop:
    """Acquire, write, release, again and again: one thread or task."""

    def __init__(
        self, config: dict[str, Any], number: int, locks: Locks, log: Log, stopping: threading.Event, trace: Trace
    ) -> None:
        self._config = config
        self._trace = trace
        self._ttl_s: float = config["ttl_s"]
        self._locks = locks
        self._log = log
        self._stopping = stopping
        self._random = random.Random(f"{config['seed']}-{number}")
        self._ids = (f"{config['name']}.{os.getpid()}.{number}.{count}" for count in itertools.count(1))
        self._writer = Writer(config["resource"])

    async def run(self) -> None:
        """Until told to stop."""
        try:
            while not self._stopping.is_set():
                await self._acquisition()
        except Exception:
            self._log.write("crash", traceback.format_exc())
            raise

    async def _acquisition(self) -> None:
        lock = self._random.choice(self._config["locks"])
        asks()
        asked_ns = now_ns()
        try:
            section = await self._locks.acquire(lock, _TIMEOUT_S)
        except Exception as error:
            self._log.write("failed", lock, asked_ns, now_ns(), type(error).__name__)
            self._examine(error)
            await self._locks.sleep(self._random.uniform(0.02, 0.2))
            return
        if section is None:
            self._log.write("failed", lock, asked_ns, now_ns(), "timeout")
            return
        start_ns = now_ns()
        ident = next(self._ids)
        try:
            until_ns = await self._until(section)
        except Lost as error:  # over before it could be looked at
            self._log.write("granted", ident, lock, section.fence, asked_ns, start_ns, start_ns)
            lost: str | None = str(error)
        else:
            self._log.write("granted", ident, lock, section.fence, asked_ns, start_ns, until_ns)
            self._log.write("queued", ident, queued_ns())
            self._write_notes(section, ident)
            lost = await self._stay(section, lock, ident, start_ns)
        if lost is None:
            self._log.write("left", ident, now_ns())
        else:
            self._log.write("lost", ident, now_ns(), lost)
        self._write_notes(section, ident)
        try:
            await section.release()
        except Exception as error:
            self._log.write("error", "release", type(error).__name__)
            self._examine(error)
        await self._locks.sleep(self._random.uniform(0, 0.005))

    def _write_notes(self, section: Section, ident: str) -> None:
        """What made it trust the lease since the last look."""
        notes = self._trace.take(section.token) if section.token is not None else []
        if notes:
            self._log.write("noted", ident, notes)

    def _examine(self, error: Exception) -> None:
        """Errors of the library are part of the game; others are not."""
        if not isinstance(error, self._locks.errors):
            self._log.write("crash", traceback.format_exc())

    async def _until(self, section: Section) -> int | None:
        """Up to when it may be relied on: what remains counts from a stamp taken before."""
        at_ns = now_ns()
        remaining_s = await section.remaining_s()
        return None if remaining_s is None else at_ns + int(remaining_s * 1e9)

    async def _stay(self, section: Section, lock: str, ident: str, start_ns: int) -> str | None:
        """In the critical section; the reason when it is lost on the way."""
        long = self._locks.renews and self._random.random() < _LONG_SHARE
        brief = not long and self._random.random() < _BRIEF_SHARE
        steps = 1 if brief else self._random.randint(1, 4)
        pause_s = self._ttl_s * self._random.uniform(0.2, 0.6) if long else 0.0
        for _ in range(steps):
            if not brief:
                await self._locks.sleep(pause_s or self._random.expovariate(1 / 0.003))
            try:
                until_ns = await self._until(section)
            except Lost as error:
                return str(error)
            self._write_notes(section, ident)
            self._log.write("valid", ident, now_ns() if until_ns is None else min(now_ns(), until_ns), until_ns)
            accepted = self._writer.write(lock, section.fence, start_ns)
            self._log.write("wrote", ident, now_ns(), accepted)
        return None


def _driven(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run what never waits for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("a blocking lock waited for an event loop")


def main(config: dict[str, Any]) -> int:
    """Work until SIGTERM."""
    warnings.simplefilter("error", RuntimeWarning)
    stopping = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the rig, which tells us
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    log = Log(Path(config["log"]))
    trace = Trace()
    if config["library"] == "holdfast":
        trace.install()
    blocking, tasks = KINDS[config["library"]]
    failed: list[BaseException] = []
    if config["api"] == "threads":
        locks: Locks = blocking(config["url"], config["ttl_s"], **config["options"])
        loops = [_Loop(config, number, locks, log, stopping, trace) for number in range(config["loops"])]

        def work(loop: _Loop) -> None:
            try:
                _driven(loop.run())
            except BaseException as error:
                failed.append(error)
                stopping.set()

        threads = [threading.Thread(target=work, args=(loop,)) for loop in loops]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(0.2)
        _driven(locks.close())
        return 1 if failed else 0

    async def inside() -> None:
        assert tasks is not None
        locks = tasks(config["url"], config["ttl_s"], **config["options"])
        loops = [_Loop(config, number, locks, log, stopping, trace) for number in range(config["loops"])]
        try:
            await asyncio.gather(*(loop.run() for loop in loops))
        finally:
            await locks.close()

    asyncio.run(inside())
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
