"""Parties that contend for one lock, as threads, tasks or processes, and what they saw.

Everyone begins together and ends at a set time; stamps are of the monotonic clock, which all processes of a
machine share. The order of grants is that of their stamps, which holds because no one holds it beside another.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import multiprocessing
import multiprocessing.connection
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import peers, peers_aio

__all__ = [
    "Seen",
    "cpu_us",
    "handoffs_us",
    "jain",
    "longest_wait_s",
    "of_peer",
    "of_processes",
    "of_tasks",
    "of_threads",
    "per_s",
]

#: `holdfast` itself imports its APIs when they are first used.
_PRELOADED = ["bench.crowd", "holdfast._sync.client", "holdfast._engine.refusals", "redis", "redis_lock"]
#: No one needs longer than this to come to an end; then something hangs, and is killed.
_END_S = 60.0


@dataclass(slots=True)
class Seen:
    """What one party saw: for each turn, when it was granted and when its release began."""

    turns: list[tuple[float, float]] = field(default_factory=list)
    error: str | None = None
    #: What all of its process has used of a CPU meanwhile, s; 0.0 where another party of that process says it.
    cpu_s: float = 0.0


def handoffs_us(all_seen: Sequence[Seen], skip_s: float) -> list[float]:
    """Measure from the start of a release to the next grant, µs; what the first moments show is left out.

    Two turns in a row of one party are no handoff.
    """
    turns = sorted((granted, released, who) for who, seen in enumerate(all_seen) for granted, released in seen.turns)
    if not turns:
        return []
    begin = turns[0][0] + skip_s
    return [
        (later[0] - earlier[1]) * 1e6
        for earlier, later in itertools.pairwise(turns)
        if earlier[0] >= begin and earlier[2] != later[2]
    ]


def jain(counts: Sequence[int]) -> float:
    """Jain's fairness index: 1 when all got the same, 1/n when one got everything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0


def longest_wait_s(all_seen: Sequence[Seen]) -> float:
    """The longest time between the end of a party's turn and its next one; it asks at once."""
    waits = (later[0] - earlier[1] for seen in all_seen for earlier, later in itertools.pairwise(seen.turns))
    return max(waits, default=math.nan)


def cpu_us(all_seen: Sequence[Seen]) -> float:
    """Return the CPU time of a turn in all its processes, µs: user's and system's, of all threads."""
    return sum(each.cpu_s for each in all_seen) * 1e6 / max(1, sum(len(each.turns) for each in all_seen))


def per_s(all_seen: Sequence[Seen]) -> float:
    """Return the number of turns each second."""
    first = min((each.turns[0][0] for each in all_seen if each.turns), default=math.nan)
    last = max((each.turns[-1][1] for each in all_seen if each.turns), default=math.nan)
    return sum(len(each.turns) for each in all_seen) / (last - first)


def _within(within: peers.Inside, seen: Seen, hold_s: float, gate: threading.Event, until: list[float]) -> None:
    monotonic, turns = time.monotonic, seen.turns

    def inside() -> None:
        granted = monotonic()
        if hold_s:
            time.sleep(hold_s)
        turns.append((granted, monotonic()))

    try:
        gate.wait(_END_S)
        while monotonic() < until[0]:
            within(inside)
    except Exception as error:  # reported by the process that waits for us
        seen.error = repr(error)


def _compete(pair: peers.Pair, seen: Seen, hold_s: float, gate: threading.Event, until: list[float]) -> None:
    acquire, release = pair
    monotonic = time.monotonic
    try:
        gate.wait(_END_S)
        while monotonic() < until[0]:
            lease = acquire()
            granted = monotonic()
            if hold_s:
                time.sleep(hold_s)
            released = monotonic()
            release(lease)
            seen.turns.append((granted, released))
    except Exception as error:  # reported by the process that waits for us
        seen.error = repr(error)


def of_threads(who: str, url: str, name: str, count: int, hold_s: float, lasts_s: float) -> list[Seen]:
    """`count` threads of this process, one client."""
    return of_peer(peers.PEERS[who](url), name, count, hold_s, lasts_s)


def of_peer(peer: peers.Peer, name: str, count: int, hold_s: float, lasts_s: float) -> list[Seen]:
    """`count` threads of this process over a client, which is closed at the end."""
    try:
        return _threads(peer, name, count, hold_s, lambda: time.monotonic() + lasts_s)
    finally:
        peer.close()


def _threads(peer: peers.Peer, name: str, count: int, hold_s: float, until: Any) -> list[Seen]:
    all_seen = [Seen() for _ in range(count)]
    gate, end = threading.Event(), [0.0]
    target: Any = _compete
    make: Any = peer.pair
    if isinstance(peer, peers.Idiom):
        target, make = _within, peer.within
    threads = [
        threading.Thread(target=target, args=(make(name), seen, hold_s, gate, end), daemon=True) for seen in all_seen
    ]
    for thread in threads:
        thread.start()
    end[0] = until()
    began_s = time.process_time()
    gate.set()
    give_up = end[0] + _END_S
    for thread in threads:
        thread.join(max(0.0, give_up - time.monotonic()))
    all_seen[0].cpu_s = time.process_time() - began_s
    return _checked(all_seen, sum(thread.is_alive() for thread in threads))


def _checked(all_seen: list[Seen], hanging: int) -> list[Seen]:
    errors = [seen.error for seen in all_seen if seen.error is not None]
    if errors or hanging:
        raise RuntimeError(f"{len(errors)} of {len(all_seen)} failed, {hanging} hang: {errors[:1]}")
    return all_seen


def of_tasks(who: str, url: str, name: str, count: int, hold_s: float, lasts_s: float) -> list[Seen]:
    """`count` tasks of one event loop, one client."""

    async def compete(pair: peers_aio.Pair, seen: Seen, until: float) -> None:
        acquire, release = pair
        monotonic = time.monotonic
        while monotonic() < until:
            lease = await acquire()
            granted = monotonic()
            if hold_s:
                await asyncio.sleep(hold_s)
            released = monotonic()
            await release(lease)
            seen.turns.append((granted, released))

    async def main() -> list[Seen]:
        peer = peers_aio.PEERS[who](url)
        try:
            pairs = [await peer.pair(name) for _ in range(count)]
            all_seen = [Seen() for _ in range(count)]
            until = time.monotonic() + lasts_s
            async with asyncio.timeout(lasts_s + _END_S):
                await asyncio.gather(*(compete(pair, seen, until) for pair, seen in zip(pairs, all_seen, strict=True)))
            return all_seen
        finally:
            await peer.close()

    return asyncio.run(main())


def of_processes(
    who: str, url: str, name: str, count: int, hold_s: float, lasts_s: float, threads: int = 1
) -> list[Seen]:
    """`count` processes of `threads` threads each, a client for every process."""
    # A fork server that has imported everything: many processes cost little, and no thread of ours is copied.
    spawning = multiprocessing.get_context("forkserver")
    spawning.set_forkserver_preload(_PRELOADED)
    pipes: list[multiprocessing.connection.Connection] = []
    processes = []
    try:
        for _ in range(count):
            ours, theirs = spawning.Pipe()
            process = spawning.Process(target=_process, args=(theirs, who, url, name, threads, hold_s), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _hear(pipe)
        until = time.monotonic() + lasts_s
        for pipe in pipes:
            pipe.send(until)
        all_seen: list[Seen] = []
        for pipe in pipes:
            said = _hear(pipe)
            if isinstance(said, str):
                raise RuntimeError(said)
            all_seen += [Seen(turns, cpu_s=cpu_s) for turns, cpu_s in said]
        for pipe in pipes:
            pipe.send(None)  # no one leaves while others measure
        for process in processes:
            process.join(_END_S)
        return all_seen
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in pipes:
            pipe.close()


def _hear(pipe: multiprocessing.connection.Connection) -> Any:
    if not pipe.poll(2 * _END_S):
        raise RuntimeError("a process hangs")
    return pipe.recv()


def _process(
    pipe: multiprocessing.connection.Connection, who: str, url: str, name: str, threads: int, hold_s: float
) -> None:
    peer = peers.PEERS[who](url)

    def until() -> float:
        pipe.send("ready")
        end: float = pipe.recv()
        return end

    try:
        pipe.send([(seen.turns, seen.cpu_s) for seen in _threads(peer, name, threads, hold_s, until)])
    except RuntimeError as error:
        pipe.send(str(error))
    pipe.recv()
    peer.close()
