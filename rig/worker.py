"""A process that takes turns: `python -m rig.worker JSON`. Ends by SIGTERM, giving back what it holds.

It uses a library as any program does, by its public names, and writes down what it asked for, what it was told, and
for how long it was told to rely on it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from rig import command
from rig.history import Log, now_ns
from rig.locks import KINDS, Locks, Lost, Section, Wanted
from rig.resource import Writer

#: Fraction of the stays that only write once: several of them fit into the time for which a client hands a lock on by
#: itself.
_BRIEF_SHARE = 0.6
#: And of those that are extended, where the library can.
_EXTENDED_SHARE = 0.1
_READERS_SHARE = 0.6


class _Loop:
    """Acquire, write, release, again and again: one thread or task."""

    def __init__(self, config: dict[str, Any], number: int, locks: Locks, log: Log, stopping: threading.Event) -> None:
        self._config = config
        self._ttl_s: float = config["ttl_s"]
        self._fast: bool = config["fast"]
        self._locks = locks
        self._log = log
        self._p = f"{config['name']}.{number}"
        self._stopping = stopping
        self._random = random.Random(f"{config['seed']}-{number}")
        self._ops = itertools.count(1)
        self._writer = Writer(config["resource"])

    async def run(self) -> None:
        """Work until told to stop."""
        try:
            while not self._stopping.is_set():
                await self._acquisition()
        except Exception:
            self._log.note("crash", traceback.format_exc())
            raise

    def _wanted(self) -> Wanted:
        """Choose one of the locks, with one of the settings."""
        spec = self._random.choice(self._config["locks"])
        kind, name = spec["kind"], spec["name"]
        mode: str | int = "exclusive"
        if kind == "rwlock" and self._random.random() < _READERS_SHARE:
            mode = "shared"
        elif kind == "semaphore":
            mode = self._random.randint(1, max(1, spec["permits"] - 1))
        options = self._random.choice(self._config["settings"])
        if kind != "lock":
            options = {key: value for key, value in options.items() if key != "cache_for"}
        wanted = Wanted(name, kind, mode, spec.get("members", [name]), options)
        wanted.permits = spec.get("permits", 0)
        return wanted

    async def _acquisition(self) -> None:
        wanted = self._wanted()
        op, event, p = next(self._ops), self._log.event, self._p
        # A multilock is a lease of each of its locks.
        ops: list[tuple[int | str, str]]
        names = [f"election:{name}" if wanted.kind == "election" else name for name in wanted.members]
        ops = [(op, names[0])] if len(names) == 1 else [(f"{op}/{number}", name) for number, name in enumerate(names)]
        mode = wanted.mode if isinstance(wanted.mode, str) else {"permits": wanted.mode}
        known = False
        if self._config["queued"] and len(ops) == 1:  # several queues have no order in common

            def queued() -> None:
                nonlocal known
                if not known:
                    event("queued", p, op=op, lock=names[0])
                known = True

            wanted.queued = queued
        for each, name in ops:
            event("ask", p, op=each, lock=name, do="acquire", mode=mode)
        try:
            section = await self._locks.acquire(wanted, self._config["timeout_s"])
        except Exception as error:
            for each, name in ops:
                event("not", p, op=each, lock=name, why="error", error=type(error).__name__)
            self._examine(error)
            await self._locks.sleep(self._random.uniform(0.02, 0.2))
            return
        if section is None:
            for each, name in ops:
                event("not", p, op=each, lock=name, why="timeout")
            return
        at_ns = now_ns()
        try:
            until_ns = await self._until(section)
        except Lost as error:  # over before it could be looked at
            for each, name in ops:
                event("got", p, at_ns, op=each, lock=name, token=section.fence, until=at_ns)
                event("lost", p, op=each, lock=name, why=str(error))
        else:
            for each, name in ops:
                event("got", p, at_ns, op=each, lock=name, token=section.fence, until=until_ns)
            lost = await self._stay(section, wanted, ops)
            if lost is not None:
                for each, name in ops:
                    event("lost", p, op=each, lock=name, why=lost)
        for each, name in ops:
            event("ask", p, op=each, lock=name, do="release")
        ok: bool | None = None
        try:
            ok = await section.release()
        except Exception as error:
            ok = False if isinstance(error, self._locks.lost) else None
            self._log.note("error", "release", type(error).__name__)
            self._examine(error)
        for each, name in ops:
            event("released", p, op=each, lock=name, ok=ok)
        if not self._fast:
            await self._locks.sleep(self._random.uniform(0, 0.005))

    def _examine(self, error: Exception) -> None:
        """Errors of the library are part of the game; others are not."""
        if not isinstance(error, self._locks.errors):
            self._log.note("crash", traceback.format_exc())

    async def _until(self, section: Section) -> int | None:
        """Return up to when it may be relied on: what remains counts from a stamp taken before."""
        at_ns = now_ns()
        remaining_s = await section.remaining_s()
        return None if remaining_s is None else at_ns + int(remaining_s * 1e9)

    async def _stay(self, section: Section, wanted: Wanted, ops: list[tuple[int | str, str]]) -> str | None:
        """Stay in the critical section; returns the reason when the lease is lost on the way."""
        draw, fast = self._random.random, self._fast
        long = not fast and draw() < self._config["long_share"]
        brief = fast or (not long and draw() < _BRIEF_SHARE)
        steps = 1 if brief else self._random.randint(1, 4)
        pause_s = self._ttl_s * self._random.uniform(0.2, 0.6) if long else 0.0
        if not self._locks.renews:  # all steps have to fit
            pause_s /= steps
        for step in range(steps):
            if not brief:
                await self._locks.sleep(pause_s or self._random.expovariate(1 / 0.003))
            if self._locks.extends and not brief and draw() < _EXTENDED_SHARE:
                await self._extend(section, ops)
            if step or not brief:
                try:
                    until_ns = await self._until(section)
                except Lost as error:
                    return str(error)
                for each, name in ops:
                    self._log.event("trust", self._p, op=each, lock=name, until=until_ns)
            if isinstance(wanted.mode, int):
                continue  # several are inside together: nothing to write to
            for each, name in ops:
                if wanted.mode == "exclusive":
                    self._writer.write(self._p, each, name, section.fence)
                if wanted.mode == "shared" or draw() < 0.3:
                    self._writer.read(self._p, each, name, section.fence)
        return None

    async def _extend(self, section: Section, ops: list[tuple[int | str, str]]) -> None:
        for each, name in ops:
            self._log.event("ask", self._p, op=each, lock=name, do="extend")
        try:
            await section.extend(self._ttl_s * self._random.choice((0.5, 1, 1.5)))
        except Exception as error:
            self._log.note("error", "extend", type(error).__name__)
            self._examine(error)


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
    if config["api"] == "command":
        return command.commands(config, log, stopping)
    blocking, tasks = KINDS[config["library"]]
    failed: list[BaseException] = []
    if config["api"] == "threads":
        locks: Locks = blocking(config["url"], config["ttl_s"], **config["options"])
        loops = [_Loop(config, number, locks, log, stopping) for number in range(config["loops"])]

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
        loops = [_Loop(config, number, locks, log, stopping) for number in range(config["loops"])]
        try:
            await asyncio.gather(*(loop.run() for loop in loops))
        finally:
            await locks.close()

    asyncio.run(inside())
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
