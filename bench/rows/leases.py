"""Holding many leases that renew themselves: what it costs, and whether they are still there."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

import redis

from bench.peers import unique
from bench.run import Run
from bench.tables import Table, Target, number

__all__ = ["leases"]

_TTL_S = 6
_AT_ONCE = 200
#: Ten thousand threads may need longer; then that is the result.
_PATIENCE_S = 60.0
_NAMES = ["holdfast", "holdfast, asyncio", "python-redis-lock"]


def leases(run: Run) -> Table:
    """1,000 and 10,000 of them."""
    counts = (100,) if run.quick else (1000, 10_000)
    watch_s = 2.5 if run.quick else 1.6 * _TTL_S
    table = Table(
        "leases",
        "Holding leases that renew themselves",
        f"Each with a ttl of {_TTL_S} s, in one process, watched for {watch_s:g} s after the last was acquired. "
        "redis-py's Lock has no renewal. Requests: calls of scripts, whatever each of them does. "
        "Alive: the key is still there, with its holder's token, at the end.",
        ("", "leases", "alive at the end", "threads", "connections", "requests/s", "CPU, % of a core", "acquiring, s"),
    )
    for count in counts:
        for who in _NAMES:
            run.say(f"leases: {count} of {who}")
            cost = _cost(run, who, count, watch_s)
            if "error" in cost:
                table.lines.append((who, number(count), str(cost["error"]), *["–"] * 5))
                continue
            table.lines.append(
                (
                    who,
                    number(count),
                    number(cost["alive"]),
                    number(cost["threads"]),
                    number(cost["connections"]),
                    number(cost["requests"]),
                    number(cost["cpu"] * 100),
                    number(cost["acquiring"]),
                )
            )
            table.figures[f"{who}, {count}"] = cost
    most = counts[-1]
    for who in _NAMES[:2]:
        ours = table.figures.get(f"{who}, {most}")
        if ours is not None:
            table.targets += [
                Target(f"{who}, {most:,} leases, alive", ours["alive"] or 0, most, True),
                Target(
                    f"{who}, {most:,} leases, connections besides the one that acquired", ours["connections"] or 0, 3
                ),
                Target(f"{who}, {most:,} leases, requests/s", ours["requests"] or 0, 400),
                Target(f"{who}, {most:,} leases, CPU, part of a core", ours["cpu"] or 0, 0.12),
            ]
    return table


def _cost(run: Run, who: str, count: int, watch_s: float) -> dict[str, Any]:
    """Measure in a process of its own, which ends without any clean-up: 10,000 threads take their time."""
    task = json.dumps([who, run.server.url, unique("leases"), count, watch_s])
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "bench.rows.leases", task],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done within {_PATIENCE_S:g} s"}
    last = done.stdout.strip().splitlines()[-1:]
    if not last:
        return {"error": (done.stderr.strip().splitlines() or ["ended without a word"])[-1].strip()[:60]}
    said: dict[str, Any] = json.loads(last[0])
    return said


def _main(who: str, url: str, prefix: str, count: int, watch_s: float) -> dict[str, Any]:
    admin = redis.Redis.from_url(url)
    connected = _connected(admin)
    begin = time.monotonic()
    if who == "python-redis-lock":
        import redis_lock

        client = redis.Redis.from_url(url, max_connections=100_000, socket_timeout=None)
        kept: list[Any] = []
        try:
            for index in range(count):
                lock = redis_lock.Lock(client, f"{prefix}-{index}", expire=_TTL_S, auto_renewal=True)
                lock.acquire()
                kept.append(lock)
        except RuntimeError as error:
            return {"error": f"after {len(kept)}: {error}"}
        tokens = {f"lock:{prefix}-{index}": lock.id for index, lock in enumerate(kept)}
        acquired = time.monotonic()
        return _watched(admin, tokens, connected, acquired - begin, watch_s, lambda: time.sleep(watch_s))
    if who == "holdfast":
        import holdfast

        locks = holdfast.connect(url, ttl=_TTL_S)
        held = {index: locks.lock(f"{prefix}-{index}").acquire() for index in range(count)}
        tokens = {f"holdfast:{{{prefix}-{index}}}": lease.token for index, lease in held.items()}
        acquired = time.monotonic()
        return _watched(admin, tokens, connected, acquired - begin, watch_s, lambda: time.sleep(watch_s))

    import asyncio

    import holdfast.asyncio

    async def main() -> dict[str, Any]:
        locks = holdfast.asyncio.connect(url, ttl=_TTL_S)
        begin = time.monotonic()
        held = []
        for first in range(0, count, _AT_ONCE):  # a burst of all would age while it waits for its answers
            indexes = range(first, min(first + _AT_ONCE, count))
            held += await asyncio.gather(*(locks.lock(f"{prefix}-{index}").acquire() for index in indexes))
        tokens = {f"holdfast:{{{prefix}-{index}}}": lease.token for index, lease in enumerate(held)}
        acquired = time.monotonic()
        loop = asyncio.get_running_loop()

        def pause() -> None:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(watch_s), loop).result()

        return await asyncio.to_thread(_watched, admin, tokens, connected, acquired - begin, watch_s, pause)

    return asyncio.run(main())


def _watched(
    admin: redis.Redis, tokens: dict[str, str], connected: int, acquiring_s: float, watch_s: float, pause: Any
) -> dict[str, Any]:
    requests, cpu = _requests(admin), time.process_time()
    begin = time.monotonic()
    pause()
    spent_s = time.monotonic() - begin
    cpu = time.process_time() - cpu
    requests = _requests(admin) - requests
    values: Any = admin.mget(list(tokens))
    alive = sum(
        value is not None and value.decode() == token for value, token in zip(values, tokens.values(), strict=True)
    )
    return {
        "alive": alive,
        "threads": threading.active_count() - (1 if threading.current_thread().name.startswith("asyncio") else 0),
        "connections": _connected(admin) - connected,
        "requests": requests / spent_s,
        "cpu": cpu / spent_s,
        "acquiring": acquiring_s,
    }


def _requests(admin: redis.Redis) -> int:
    """Calls of scripts: what they do inside is counted as commands, too, and is no request."""
    info: Any = admin.info("commandstats")
    return sum(int(info[name]["calls"]) for name in ("cmdstat_eval", "cmdstat_evalsha") if name in info)


def _connected(admin: redis.Redis) -> int:
    info: Any = admin.info("clients")
    return int(info["connected_clients"])


if __name__ == "__main__":
    import os

    print(json.dumps(_main(*json.loads(sys.argv[1]))), flush=True)
    os._exit(0)
