"""The bench runs: its smallest rows, in a process of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import redis

from bench import crowd, wire
from bench.crowd import Seen, handoffs_us, jain, longest_wait_s, per_s
from bench.page import bars
from bench.tables import Table, Target, number
from holdfast.embedded import Server

_ROOT = Path(__file__).parent.parent.parent


def test_quick_rows_give_figures_and_a_page(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bench", "--quick", "--json", "--pages", str(tmp_path)]
    words += ["--only", "threads", "client", "commands", "family-fairness", "observers", "startup"]
    done = subprocess.run(words, cwd=_ROOT, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["threads"]["figures"]["holdfast"]["us"] > 0
    assert rows["threads"]["figures"]["floor"]["ratio"] == 1.0
    idiom, floor = rows["client"]["figures"]["threads, with locks.lock(name)"], rows["client"]["figures"]["floor"]
    assert floor["calls"] < idiom["calls"] < 190 and floor["bytecodes"] < idiom["bytecodes"] < 3000
    assert 2.0 <= rows["commands"]["figures"]["holdfast, strict"]["sent per cycle"] < 2.5
    for who in ("1 writer among readers", "all 5 permits among single ones"):
        worst = rows["family-fairness"]["figures"][who]["worst"]
        assert 0 <= worst <= 2 * 20, f"{who}: two generations at most"
    said = (tmp_path / "evidence" / "performance.md").read_text(encoding="utf-8")
    assert "## Acquire and release, one thread, uncontended" in said
    assert "× the floor" in said
    for name in ("benchmarks.md", "benchmarks.zh-CN.md"):
        users = (tmp_path / name).read_text(encoding="utf-8")
        ours = number(rows["threads"]["figures"]["holdfast"]["us"])
        assert f"| **holdfast** | {ours} |" in users
        assert "`holdfast run NAME -- true`" in users and "–" not in users.rpartition("\n## ")[2]
        pictures = re.findall(r"\]\((benchmarks/.*?)\)", users)
        assert pictures and all((tmp_path / picture).exists() for picture in pictures)


def test_bars_are_as_long_as_their_figures() -> None:
    drawn = bars([("holdfast", 50.0), ("a & b", 100.0)], "µs")

    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    first, second = map(float, re.findall(r'<rect .*?width="([\d.]+)"', drawn))
    assert abs(second - 2 * first) <= 0.1
    assert bars([], "µs")


def test_a_row_that_does_not_exist_is_refused() -> None:
    words = [sys.executable, "-m", "bench", "--only", "nothing"]
    done = subprocess.run(words, cwd=_ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 2
    assert "nothing" in done.stderr


def test_jain() -> None:
    assert jain([5, 5, 5, 5]) == 1.0
    assert jain([20, 0, 0, 0]) == 0.25
    assert jain([0, 0]) == 0.0


def test_handoffs_count_from_release_to_the_next_grant_of_somebody_else() -> None:
    seen = [Seen([(1.0, 2.0), (5.0, 6.0)]), Seen([(3.0, 4.0), (7.0, 7.5), (7.6, 8.0)])]

    assert handoffs_us(seen, 0.0) == [1e6, 1e6, 1e6]
    assert handoffs_us(seen, 3.5) == [1e6]


def test_targets_say_by_how_much() -> None:
    assert Target("x", 1.2, 1.3).met
    assert str(Target("x", 2.6, 1.3)).endswith("**missed** by 100 %")
    assert str(Target("x", 1.0, 2.0, at_least=True)).endswith("**missed** by 100 %")
    table = Table("n", "T", "Note.", ("", "a"), [("who", "1")], [Target("x", 1, 2)])
    assert "| who | 1 |" in table.markdown()
    assert "met" in table.plain()


def test_waits_are_between_two_turns_of_one_party() -> None:
    seen = [Seen([(1.0, 2.0), (5.0, 6.0)]), Seen([(3.0, 4.0), (7.5, 7.6)]), Seen([])]

    assert longest_wait_s(seen) == 3.5
    assert per_s(seen) == 4 / (7.6 - 1.0)


def test_a_slow_wire_takes_its_time_both_ways(valkey_server: Server) -> None:
    with wire.slow(valkey_server.url, 0.05) as url, redis.Redis.from_url(url) as near:
        near.ping()
        begin = time.monotonic()
        for _ in range(3):
            near.ping()
        assert time.monotonic() - begin >= 3 * 0.1, "never less than its delay, however fast the machine is"


def test_the_floor_of_tasks_serves_all(valkey_server: Server) -> None:
    seen = crowd.of_tasks("in-process FIFO", valkey_server.url, "floor", 5, 0.0, 0.2)

    counts = [len(each.turns) for each in seen]
    assert max(counts) - min(counts) <= 1, "first come, first served"
