"""Acquire and release with no one else around."""

from __future__ import annotations

import asyncio
import statistics
import time

from bench import peers, peers_aio
from bench.run import Run, ratio, rounds
from bench.tables import Table, Target, number

__all__ = ["tasks", "threads"]


def threads(run: Run) -> Table:
    """One thread."""
    cycles = run.some(300, 100)
    names = [peers.FLOOR, "holdfast", "redis-py Lock", "python-redis-lock"]
    with peers.opened(names, run.server.url) as pairs:
        found = rounds(run, "threads", run.some(25, 3), {who: peers.timed(pairs[who], cycles, 10) for who in names})
    table = Table(
        "threads",
        "Acquire and release, one thread, uncontended",
        f"{cycles:,} pairs in each of {len(found[peers.FLOOR])} interleaved rounds. The floor is a bare socket that "
        "sends packed bytes: `SET NX PX`, and a compare-and-delete by `EVALSHA`; without fencing token and queue.",
        ("", "µs per pair", "× the floor"),
    )
    for who in names:
        times = ratio(found[who], found[peers.FLOOR])
        table.lines.append((who, number(statistics.median(found[who])), number(times)))
        table.figures[who] = {"us": statistics.median(found[who]), "ratio": times}
    table.targets.append(Target("holdfast, × the floor", table.figures["holdfast"]["ratio"] or 0.0, 1.5))
    return table


def tasks(run: Run) -> Table:
    """One event loop with 1, 100 and 1,000 tasks, each with a lock of its own."""
    names = [peers.FLOOR, peers_aio.OUR_SCRIPTS, "holdfast", "redis-py Lock"]
    table = Table(
        "asyncio",
        "Acquire and release, asyncio, each task with its own lock",
        "The floor is one connection that all tasks share (`asyncio.Protocol` and a C parser, writes of one loop "
        "iteration sent together). With the scripts of holdfast: the same, where a call for up to 32 locks does what "
        "leases need (a fencing token, a look at the queue), and nothing is made of the replies.",
        (
            "",
            "1 task, µs per pair",
            "× the floor",
            "100 tasks, pairs/s",
            "fraction of the floor's",
            "1,000 tasks, pairs/s",
            "fraction of the floor's ",
        ),
    )
    found = asyncio.run(_all_tasks(run, names))
    lines: dict[str, list[str]] = {who: [who] for who in names}
    for who in names:
        table.figures[who] = {}
    for count, seconds in found.items():
        for who in names:
            median = statistics.median(seconds[who])
            times = ratio(seconds[who], seconds[peers.FLOOR])
            if count == 1:
                lines[who] += [number(median * 1e6), number(times)]
                table.figures[who] |= {"us at 1": median * 1e6, "ratio at 1": times}
            else:
                lines[who] += [number(1 / median), number(1 / times)]
                table.figures[who] |= {f"pairs/s at {count}": 1 / median, f"part at {count}": 1 / times}
    table.lines += lines.values()
    ours = table.figures["holdfast"]
    table.targets += [
        Target("holdfast with 1 task, × the floor", ours["ratio at 1"] or 0.0, 1.6),
        Target("holdfast with 1,000 tasks, fraction of the floor's throughput", ours["part at 1000"] or 0.0, 0.5, True),
    ]
    return table


async def _all_tasks(run: Run, names: list[str]) -> dict[int, dict[str, list[float]]]:
    """Seconds a pair, for every number of tasks and every party, round by round."""
    open_peers = {who: peers_aio.PEERS[who](run.server.url) for who in names}
    found: dict[int, dict[str, list[float]]] = {}
    try:
        for count in (1, 100, 1000):
            per_task = run.some({1: 300, 100: 20, 1000: 4}[count], {1: 50, 100: 2, 1000: 1}[count])
            pairs = {who: [await peer.pair(peers.unique()) for _ in range(count)] for who, peer in open_peers.items()}
            found[count] = {who: [] for who in names}
            turns = run.some(15 if count == 1 else 9, 2)
            for turn in range(turns + 1):
                for who in names if turn % 2 else reversed(names):
                    run.say(f"asyncio, {count} tasks: round {turn} of {turns}, {who}")
                    times = 1 if turn == 0 or (who == "redis-py Lock" and count > 1) else per_task
                    seconds = await _once(pairs[who], times)
                    if turn:  # the first opens connections
                        found[count][who].append(seconds)
    finally:
        for peer in open_peers.values():
            await peer.close()
    return found


async def _once(pairs: list[peers_aio.Pair], times: int) -> float:
    async def one(acquire: object, release: object) -> None:
        assert callable(acquire) and callable(release)
        for _ in range(times):
            await release(await acquire())

    begin = time.perf_counter()
    if len(pairs) == 1:
        await one(*pairs[0])
    else:
        await asyncio.gather(*(one(*pair) for pair in pairs))
    return (time.perf_counter() - begin) / (times * len(pairs))
