"""docs/operations.md: keys, memory and connections are those of a server that everything was done on."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

import holdfast
import holdfast.asyncio
from holdfast import embedded, fencing
from testbed.waiting import eventually
from tests.support.family_worker import HELD, WAITED_FOR
from tests.support.steps import run_steps

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
TTL_S, RETAIN_S = 25, 50
#: What the table says of times, ms.
SAYS = {
    "ttl": TTL_S * 1000,
    "a minute": 60_000,
    "a day": 86_400_000,
    "30 days": 30 * 86_400_000,
    "ten minutes": 600_000,
    "ten seconds": 10_000,
    "10 s": 10_000,
    "40 s": 40_000,
    "65 s": 65_000,
    "`retain`": RETAIN_S * 1000,
}


class Row(NamedTuple):
    """Keys, and the least and the greatest of the times that are named for them, ms."""

    text: str
    keys: re.Pattern[str]
    least_ms: int
    most_ms: int


def rows() -> list[Row]:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Keys")[2]
    found = []
    for line in re.findall(r"^\| (`.*) \|$", section, re.MULTILINE):
        keys, _, lives = line.split(" | ")
        times = [ms for says, ms in SAYS.items() if re.search(rf"(?<!\w){re.escape(says)}(?!\w)", lives)]
        assert times, f"how long {keys} lives"
        found.append(Row(keys, re.compile("|".join(map(_pattern, keys.split(", ")))), min(times), sum(times)))
    return found


def _pattern(key: str) -> str:
    """Of a key as the table writes it."""
    text = (
        re.escape(key.strip("`")).replace("TOKEN", "[0-9a-f]{24}:.+").replace("…", ".+").replace("ID", "[0-9a-f]{24}")
    )
    if text.endswith(":fenced"):
        return ".+:fenced"
    if text.endswith((":fence", ":queue", ":gone")):  # a semaphore, an election, … has its own
        before, _, last = text.rpartition(":")
        text = f"{before}(:sem|:leader|:latch|:event|:barrier|:claim)?:{last}"
    elif text.endswith(":barrier"):
        text += "(:arrived|:released)?"
    return text.replace(re.escape("{NAME}"), r"\{.+\}")


@contextlib.contextmanager
def everything_done(url: str) -> Iterator[None]:
    """Hold, wait for, and leave behind one of everything; until the end of the block."""
    with holdfast.connect(url, ttl=TTL_S) as locks, holdfast.connect(url, ttl=TTL_S) as others:
        kept = [run_steps(steps(locks, f"n-{kind}", TTL_S)) for kind, steps in HELD.items()]
        waiters = [
            threading.Thread(target=_quietly, args=(partial(run_steps, steps(others, f"n-{kind}", TTL_S)), kept))
            for kind, steps in WAITED_FOR.items()
        ]
        parties = [threading.Thread(target=_quietly, args=(locks.barrier("both", 2).wait, kept)) for _ in range(2)]
        for thread in (*waiters, *parties):
            thread.start()
        kept.append(locks.lock("noted", note="by Ana").acquire())
        kept.append(locks.lock("extended").acquire())
        kept[-1].extend(TTL_S / 2)
        locks.event("set").set()
        locks.latch("counted", 2).count_down()
        assert locks.once("job", lambda lease: "made", retain=RETAIN_S).new
        fencing.guarded_set(locks, "{mine}:value", "a", 5)
        broken, asked = locks.lock("broken").acquire(), locks.lock("asked").acquire()
        eventually(lambda: others.ask("asked"))
        assert others.break_("broken", reason="test") and broken.lost.wait(60)
        condition = locks.condition(locks.lock("notified"))
        with locks.lock("notified"):
            condition.notify()
        for _ in range(3):  # grants of what changes between two looks are counted
            kept.append(locks.lock("changing").acquire())
            assert list(others.list(grants=True))
            kept.pop().release()
        full = locks.semaphore("full", 1)
        kept += [asked, full.acquire()]
        with pytest.raises(holdfast.DeadlockDetected):
            full.acquire(deadlock_check=0.2)
        yield
        others.close()
        for thread in waiters:
            thread.join()


def _quietly(act: Callable[[], Any], kept: list[Any]) -> None:
    with contextlib.suppress(holdfast.HoldfastError):
        kept.append(act())


def test_the_table_has_every_key_and_says_how_long_it_lives() -> None:
    table = rows()
    assert len(table) == 19
    with embedded.server() as server, everything_done(server.url):
        look: Any = redis.Redis.from_url(server.url, decode_responses=True)

        def missing() -> set[str]:
            keys = list(look.scan_iter())
            return {row.text for row in table if not any(row.keys.fullmatch(key) for key in keys)}

        with contextlib.suppress(AssertionError):
            eventually(lambda: not missing())
        assert missing() == set(), "each row is of keys that there are"
        left: dict[str, list[int]] = {}
        for key in set(look.scan_iter()) - {"{mine}:value"}:
            names = [row.text for row in table if row.keys.fullmatch(key)]
            assert len(names) == 1, f"{key} stands in the rows {names}"
            left_ms = look.pttl(key)
            assert left_ms != -1, f"{key} never ends"
            if left_ms != -2:
                left.setdefault(names[0], []).append(left_ms)
        look.close()
    for row in table:
        assert row.least_ms / 2 < max(left[row.text]) <= row.most_ms, row.text


async def _sizes(url: str, look: Any, name: str) -> list[int]:
    """Bytes of what the page names, in its order: a lock, its fencing token, a client, queues of 1, 100, 1,000."""

    def size(key: str) -> int:
        return int(look.execute_command("MEMORY", "USAGE", key, "SAMPLES", 0))

    async with holdfast.asyncio.connect(url, tenure=0) as one, holdfast.asyncio.connect(url, tenure=0) as two:
        lock = f"holdfast:{{{name}}}"
        lease = await one.lock(name).acquire()
        sizes = [size(lock), size(f"{lock}:fence")]
        waiting: list[asyncio.Task[Any]] = []
        queues = []
        for many in (1, 100, 1_000):
            waiting += [asyncio.create_task(two.lock(name).acquire()) for _ in range(many - len(waiting))]
            async with asyncio.timeout(60):
                while look.zcard(f"{lock}:queue") < many:
                    await asyncio.sleep(0.01)
            queues.append(size(f"{lock}:queue"))
        sizes.append(size(f"holdfast:client:{lease.token.partition(':')[0]}"))
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await lease.release()
        return sizes + queues


def test_memory_is_as_measured() -> None:
    said = PAGE.read_text(encoding="utf-8").partition("SAMPLES 0`: ")[2].partition("A client has")[0]
    *figures, hundred, waiters, thousand, more = (int(each.replace(",", "")) for each in re.findall(r"[\d,]*\d", said))
    assert (waiters, more) == (100, 1_000)
    figures += [hundred, thousand]
    with embedded.server() as server, redis.Redis.from_url(server.url, decode_responses=True) as look:
        sizes = asyncio.run(_sizes(server.url, look, "ninechars"))
    for figure, size in zip(figures, sizes, strict=True):
        assert 0.8 < size / figure < 1.25, (figures, sizes)


def test_all_threads_of_a_client_have_one_connection(valkey_server: embedded.Server, unique_name: str) -> None:
    look: Any = redis.Redis.from_url(valkey_server.url, decode_responses=True)
    name = unique_name[-30:]

    def connections() -> list[bool]:
        """For each, whether it listens."""
        return [int(each["sub"]) > 0 for each in look.client_list() if each["name"] == name]

    with (
        holdfast.connect(f"{valkey_server.url}?client_name={name}") as locks,
        holdfast.connect(valkey_server.url) as others,
    ):
        kept: list[Any] = []
        held = others.lock(unique_name).acquire()
        workers = [
            threading.Thread(target=_quietly, args=(locks.lock(each).acquire, kept))
            for each in [f"{unique_name}-{number}" for number in range(6)] + [unique_name]
        ]
        for worker in workers:
            worker.start()
        eventually(lambda: locks.lock(unique_name).waiters() == 1)
        assert connections() == [True]
        held.release()
        for worker in workers:
            worker.join()
        assert len(kept) == len(workers) and connections() == [True]
        for lease in kept:
            lease.release()
    look.close()
