"""What the server has to do: commands for each cycle and each handoff, and the time that scripts take."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import redis

from bench import crowd, peers
from bench.run import Run, rounds
from bench.tables import Table, Target, number

__all__ = ["commands", "counted", "server"]

#: What the counting itself, and setting up, sends.
_NOT_COUNTED = frozenset({"info", "monitor", "client", "hello", "script", "subscribe", "select", "ping", "config"})


def commands(run: Run) -> Table:
    """Counted, so one round is enough."""
    cycles = run.some(200, 50)
    lasts_s = run.some(10, 3) / 10
    names = [peers.FLOOR, peers.STRICT, "redis-py Lock", "python-redis-lock"]
    table = Table(
        "commands",
        "Commands that the server executes",
        "`INFO commandstats` for all of them, MONITOR for those that came from a client; the rest ran inside scripts. "
        "For each uncontended acquire and release, and for each handoff among 8 waiting threads (the floor there "
        "is BLPOP and LPUSH). Subscriptions, connecting and loading scripts are not counted.",
        ("", "sent per cycle", "in scripts", "sent per handoff", "in scripts ", "which (per handoff)"),
    )
    with redis.Redis.from_url(run.server.url) as client:
        for who in names:
            run.say(f"commands: {who}")
            peer = peers.PEERS[who](run.server.url)
            try:
                acquire, release = peer.pair(peers.unique())
                release(acquire())
                if isinstance(peer, peers.Holdfast):
                    peer.settle()
                with counted(client) as cycle:
                    for _ in range(cycles):
                        release(acquire())
            finally:
                peer.close()
            waiting = "BLPOP floor" if who == peers.FLOOR else who
            with counted(client) as handoff:
                seen = crowd.of_threads(waiting, run.server.url, peers.unique(), 8, 0.002, lasts_s)
            turns = sum(len(each.turns) for each in seen)
            which = ", ".join(
                f"{name} {number(count / turns)}"
                for name, count in sorted(handoff.each.items(), key=lambda item: -item[1])
                if count / turns >= 0.05
            )
            table.lines.append(
                (
                    who,
                    number(cycle.sent / cycles),
                    number((cycle.carried_out - cycle.sent) / cycles),
                    number(handoff.sent / turns),
                    number((handoff.carried_out - handoff.sent) / turns),
                    which,
                )
            )
            table.figures[who] = {
                "sent per cycle": cycle.sent / cycles,
                "in scripts per cycle": (cycle.carried_out - cycle.sent) / cycles,
                "sent per handoff": handoff.sent / turns,
                "in scripts per handoff": (handoff.carried_out - handoff.sent) / turns,
            }
    # The first who comes finds the lock free, and the client introduces itself once: hence the little more.
    table.targets.append(
        Target(f"{peers.STRICT}, commands per handoff", table.figures[peers.STRICT]["sent per handoff"] or 0.0, 2.1)
    )
    return table


class _Count:
    def __init__(self) -> None:
        self.sent = 0
        self.carried_out = 0
        self.each: dict[str, int] = {}


@contextlib.contextmanager
def counted(client: redis.Redis) -> Iterator[_Count]:
    """Counts what the server does meanwhile."""
    count = _Count()
    untyped: Any = client
    with untyped.monitor() as monitor:
        before = _calls(client)
        yield count
        after = _calls(client)
        marker = peers.unique("end-of-count")
        client.echo(marker)
        for told in monitor.listen():
            command: str = told["command"]
            if marker in command:
                break
            name = command.split(" ", 1)[0].lower()
            if told["client_type"] != "lua" and name not in _NOT_COUNTED:
                count.sent += 1
    count.each = {
        name: calls - before.get(name, 0)
        for name, calls in after.items()
        if calls > before.get(name, 0) and name.split("|")[0] not in _NOT_COUNTED
    }
    count.carried_out = sum(count.each.values())


def _calls(client: redis.Redis) -> dict[str, int]:
    stats: Any = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}


def server(run: Run) -> Table:
    """The server's own account of its time for each script, without any network."""
    calls = run.some(1000, 200)
    table = Table(
        "server",
        "Server time per call",
        "`usec_per_call` of `INFO commandstats`, from pipelines of many calls, interleaved: other load on the "
        "machine disturbs this figure least. The floor's are `SET NX PX` and its compare-and-delete.",
        ("", "acquire, µs", "release, µs", "renew, µs"),
    )
    from holdfast._lua import SCRIPTS

    with redis.Redis.from_url(run.server.url) as client:
        keys = [f"server:{{1}}{part}" for part in ("", ":fence", ":queue", ":gone")]
        token = "0" * 24 + ":1:1"
        delete = client.script_load(peers.CHECKED_DELETE)
        for name in ("acquire", "release", "renew"):
            client.script_load(SCRIPTS[name].text)
        acquire = ("EVALSHA", SCRIPTS["acquire"].sha, 4, *keys, token, 30000, "try", 0, 86400000, 2000, "inbox:")
        release = ("EVALSHA", SCRIPTS["release"].sha, 4, *keys, token, 86400000, 2000, "inbox:", 0)
        renew = ("EVALSHA", SCRIPTS["renew"].sha, 1, keys[0], token, 30000)
        take = ("SET", "server:floor", token, "NX", "PX", 30000)
        give = ("EVALSHA", delete, 1, "server:floor", token)

        def spent(first: tuple[Any, ...], second: tuple[Any, ...], of: int) -> Callable[[], float]:
            """µs for each call of one of two commands that take turns; `of` is the script that counts."""

            def once() -> float:
                # A pipeline of firsts and seconds; the time of both, then of the other one alone, is not at hand:
                # commandstats cannot tell two scripts apart. So the second runs as a pair with a plain command.
                pipe = client.pipeline(transaction=False)
                before = _spent(client)
                for _ in range(calls):
                    pipe.execute_command(*first)
                    pipe.execute_command(*second)
                pipe.execute()
                after = _spent(client)
                return (after[of] - before[of]) / calls

            return once

        found = rounds(
            run,
            "server",
            run.some(9, 2),
            {
                # A DEL after each acquire, a SET before each release: one script in each pipeline.
                "floor acquire": spent(take, ("DEL", "server:floor"), 0),
                "floor release": spent(("SET", "server:floor", token, "PX", 30000), give, 1),
                "acquire": spent(acquire, ("DEL", keys[0]), 1),
                "release": spent(("SET", keys[0], token, "PX", 30000), release, 1),
                "renew": spent(("SET", keys[0], token, "PX", 30000), renew, 1),
            },
        )
        client.delete("server:floor", *keys)
    median = {what: statistics.median(values) for what, values in found.items()}
    table.lines += [
        (peers.FLOOR, number(median["floor acquire"]), number(median["floor release"]), "–"),
        ("holdfast", number(median["acquire"]), number(median["release"]), number(median["renew"])),
    ]
    table.figures = {
        peers.FLOOR: {"acquire": median["floor acquire"], "release": median["floor release"]},
        "holdfast": {what: median[what] for what in ("acquire", "release", "renew")},
    }
    return table


def _spent(client: redis.Redis) -> tuple[float, float]:
    """µs spent in SET, and in EVALSHA."""
    stats: Any = client.info("commandstats")
    return (
        float(stats.get("cmdstat_set", {}).get("usec", 0)),
        float(stats.get("cmdstat_evalsha", {}).get("usec", 0)),
    )
