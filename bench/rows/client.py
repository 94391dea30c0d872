"""What a pair costs the client, apart from the time: Python's bytecodes and calls, which no noise changes, and CPU."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import holdfast.asyncio
from bench import peers
from bench.run import Run, ratio, rounds
from bench.tables import Table, number
from testbed.waiting import eventually

__all__ = ["client"]

_IDIOM = "with locks.lock(name)"
_REUSED = "lock.acquire(), lease.release()"

Pairs = Callable[[int], object]


def client(run: Run) -> Table:
    """An uncontended pair in the idiom of the README, and of an object that is used again."""
    cycles, counted = run.some(300, 50), run.some(100, 20)
    loop = asyncio.new_event_loop()
    floor = peers.PEERS[peers.FLOOR](run.server.url)
    locks = holdfast.connect(run.server.url)
    tasks = holdfast.asyncio.connect(run.server.url)
    try:
        take, give = floor.pair(peers.unique())
        parties: dict[str, Pairs] = {
            peers.FLOOR: lambda count: [give(take()) for _ in range(count)],
            f"threads, {_REUSED}": _reused(locks.lock(peers.unique())),
            f"threads, {_IDIOM}": _idiom(locks, peers.unique()),
            f"asyncio, {_REUSED}": lambda count: loop.run_until_complete(reused(count)),
            f"asyncio, async {_IDIOM}": lambda count: loop.run_until_complete(idiom(count)),
        }
        lock, name = tasks.lock(peers.unique()), peers.unique()

        async def reused(count: int) -> None:
            for _ in range(count):
                await (await lock.acquire()).release()

        async def idiom(count: int) -> None:
            for _ in range(count):
                async with tasks.lock(name):
                    pass

        for pairs in parties.values():
            pairs(10)  # connections, scripts, what a client publishes of itself
        agent = locks._session.driver.client
        eventually(lambda: not agent.tasks and not agent.releasing.latest, "what was begun has ended")
        loop.run_until_complete(asyncio.sleep(0.2))
        found = rounds(run, "client", run.some(25, 3), {who: _cpu(pairs, cycles) for who, pairs in parties.items()})
        steps = {who: _steps(pairs, counted) for who, pairs in parties.items()}
    finally:
        loop.run_until_complete(tasks.close())
        loop.close()
        locks.close()
        floor.close()
    table = Table(
        "client",
        "What an uncontended pair costs the client",
        "Bytecodes that Python executes, and calls of Python and C functions, for each acquire and release, those of "
        "the event loop included: the same in every run. CPU time of the process, in interleaved rounds, beside a bare "
        "socket.",
        ("", "bytecodes", "calls", "CPU, µs", "× the floor"),
    )
    for who in parties:
        cpu_us, times = statistics.median(found[who]), ratio(found[who], found[peers.FLOOR])
        codes, calls = steps[who]
        table.lines.append((who, number(codes), number(calls), number(cpu_us), number(times)))
        table.figures[who] = {"bytecodes": codes, "calls": calls, "cpu us": cpu_us, "ratio": times}
    return table


def _reused(lock: holdfast.Lock) -> Pairs:
    def pairs(count: int) -> None:
        for _ in range(count):
            lock.acquire().release()

    return pairs


def _idiom(locks: holdfast.Client, name: str) -> Pairs:
    def pairs(count: int) -> None:
        for _ in range(count):
            with locks.lock(name):
                pass

    return pairs


def _cpu(pairs: Pairs, cycles: int) -> Callable[[], float]:
    def once() -> float:
        pairs(10)
        begin = time.process_time()
        pairs(cycles)
        return (time.process_time() - begin) / cycles * 1e6

    return once


def _steps(pairs: Pairs, count: int) -> tuple[float, float]:
    """Bytecodes and calls for each pair, in this thread."""
    codes = calls = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal codes
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        codes += event == "opcode"
        return trace

    def profile(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.settrace(trace)
    try:
        pairs(count)
    finally:
        sys.settrace(None)
    sys.setprofile(profile)
    try:
        pairs(count)
    finally:
        sys.setprofile(None)
    return codes / count, calls / count
