"""What the rig writes down: the format of verify/FORMAT.md, from processes and from the protected resource."""

from __future__ import annotations

import json
import lzma
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from rig.history import History, Log
from rig.nemesis import Nemesis
from rig.resource import Resource, Writer
from rig.run import Run
from rig.stages import STAGES
from rig.torture import _locks_of
from testbed.waiting import eventually


def test_a_history_is_read_up_to_the_line_that_was_cut(tmp_path: Path) -> None:
    log = Log(tmp_path / "w0.log")
    log.event("ask", "w0.0", 10, op=1, lock="a", do="acquire", mode="exclusive")
    log.event("got", "w0.0", 12, op=1, lock="a", token=3, until=50)
    log.event("lost", "w0.0", 40, op=1, lock="a", why="expired")
    log.note("error", "release", "LeaseLost")
    log.event("ask", "w0.1", 11, op=1, lock="a", do="acquire", mode="exclusive")
    log.event("not", "w0.1", 13, op=1, lock="a", why="error", error="ServerError")
    log.close()
    with (tmp_path / "w0.log").open("a") as file:
        file.write('{"t":60,"p":"w0.')  # its writer was killed here
    history = History.read([tmp_path / "w0.log"])
    assert [event["t"] for event in history.events] == [10, 11, 12, 13, 40]
    assert history.errors == {"lost: expired": 1, "release: LeaseLost": 1, "acquire: ServerError": 1}
    assert (history.operations, history.number("got"), history.number("not", why="error")) == (2, 1, 1)

    history.save(tmp_path / "all.jsonl.xz", {"format": "lock-history"})
    with lzma.open(tmp_path / "all.jsonl.xz") as file:
        header, *events = [json.loads(line) for line in file]
    assert header == {"format": "lock-history", "events": 5}
    assert events == history.events, "notes are the rig's own"


def test_what_lives_have_to_say_is_read(tmp_path: Path) -> None:
    log = Log(tmp_path / "L1t.log")
    log.note("counts", {"a fork amid busy threads": 2}, {"plain": 5})
    log.note("counts", {"a fork amid busy threads": 1}, {"plain": 1, "block": 2})
    log.note("broken", "block hangs")
    log.note("memory", 20.0, 21.5)
    log.close()
    history = History.read([tmp_path / "L1t.log"])
    assert history.played == {"a fork amid busy threads": 3}
    assert history.did == {"plain": 6, "block": 2}
    assert history.broken == ["L1t: block hangs"]
    assert history.memory_mb == (20.0, 21.5)
    assert history.events == []


def test_leases_that_a_client_handed_on_are_counted(tmp_path: Path) -> None:
    log = Log(tmp_path / "w.log")
    for at, (p, token) in enumerate([("w0.0", 20), ("w0.1", 21), ("w1.0", 22), ("w1.0", 40), ("w1.1", 41)]):
        log.event("got", p, at, op=at, lock="a", token=token, until=None)
    log.close()
    assert History.read([tmp_path / "w.log"]).handed_on == 2


def test_the_resource_refuses_what_is_stale_and_writes_it_down(tmp_path: Path) -> None:
    with Resource(tmp_path / "r", tmp_path / "r.log") as resource:
        one, two = Writer(str(resource.path)), Writer(str(resource.path))
        assert one.read("w0", 1, "a", 5) is None
        assert one.write("w0", 1, "a", 5)
        assert two.write("w1", 1, "a", 6)
        assert not one.write("w0", 1, "a", 5)
        assert two.read("w1", 1, "a", 6) == "w1/1/1"
        assert one.read("w0", 1, "a", 5) is None, "refused"
        assert two.read("w1", 2, "a", 9) == "w1/1/1"
        assert two.write("w1", 1, "a", 6), "a reader with a higher token does not keep it out"
        assert one.write("w0", 1, "b", 5)
        assert one.write("w0", 1, "c", None)
        one.close()
        two.close()
    events = History.read([tmp_path / "r.log"]).events
    assert [(event["e"], event["p"], event["ok"]) for event in events] == [
        ("read", "w0", True),
        ("write", "w0", True),
        ("write", "w1", True),
        ("write", "w0", False),
        ("read", "w1", True),
        ("read", "w0", False),
        ("read", "w1", True),
        ("write", "w1", True),
        ("write", "w0", True),
        ("write", "w0", True),
    ]
    assert all(event["from"] <= event["t"] for event in events)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    with STAGES["single"]() as stage, Resource(tmp_path / "resource", tmp_path / "resource.log") as resource:
        made = Run(
            "holdfast",
            stage,
            tmp_path,
            resource,
            seed=1,
            processes=2,
            commands=1,
            loops=2,
            locks=2,
            kinds="mixed",
            settings=None,
            fast=False,
            long_share=0.0,
            queued=True,
            ttl_s=1.0,
            timeout_s=5.0,
            verbose=False,
            src=None,
        )
        yield made
        made.close()


def test_workers_write_what_they_ask_for_and_what_they_are_told(run: Any) -> None:
    """Threads, tasks and commands; every kind of lock; a process that is killed ends there."""
    run.start()

    def seen(p: str) -> set[tuple[str, str]]:
        return {(event["e"], event.get("do", "")) for event in run.history().events if event["p"].startswith(p)}

    whole = {("ask", "acquire"), ("got", ""), ("trust", ""), ("ask", "release")}
    eventually(lambda: all(whole <= seen(p) for p in ("0t", "1a", "2c")))
    eventually(lambda: len({event["lock"] for event in run.history().events if "lock" in event}) >= 5)
    eventually(lambda: {"exclusive", "shared"} <= {str(event.get("mode")) for event in run.history().events})
    run.replace(0)
    eventually(lambda: whole <= seen("0t4"))
    run.end()
    assert run.failures == []
    history = run.history()
    assert history.crashes == []
    assert [event["p"] for event in history.events if event["e"] == "end" and "." not in event["p"]] == ["0t1"]
    modes = [event["mode"] for event in history.events if event.get("do") == "acquire"]
    assert {"exclusive", "shared"} <= {mode for mode in modes if isinstance(mode, str)}
    for event in history.events:
        if event["e"] == "got":
            assert event["token"] > 0 and event["until"] >= event["t"]


def test_a_fault_that_there_is_not_is_refused(run: Any) -> None:
    with pytest.raises(ValueError, match="no fault 'rain' here: there are kill a worker"):
        Nemesis(run, 1, only=["rain"])
    nemesis = Nemesis(run, 1, only=["flush all", "delay"])
    assert nemesis.rows == [55]


@pytest.mark.parametrize(("kind", "numbers"), [("kill a command", 1), ("stop a command", 2)])
def test_a_command_is_hit_and_its_worker_goes_on(
    run: Any, monkeypatch: pytest.MonkeyPatch, kind: str, numbers: int
) -> None:
    hit: list[tuple[int, int]] = []
    kill = os.kill

    def note(pid: int, number: int) -> None:
        hit.append((pid, number))
        kill(pid, number)

    run.start()
    command = run.workers[2]
    eventually(command.descendants)
    nemesis = Nemesis(run, 1, (0.0, 0.1), only=[kind])
    stopping = threading.Event()
    striking = threading.Thread(target=nemesis.run, args=(stopping,))
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", note)
        striking.start()
        eventually(lambda: len(hit) >= numbers)
        stopping.set()
        striking.join()
    assert not {pid for pid, _ in hit} & {worker._process.pid for worker in run.workers}
    assert {number for _, number in hit} <= {signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT}

    def of_commands() -> int:
        return len({event["p"] for event in run.history().events if event["p"].startswith("2c")})

    before = of_commands()
    eventually(lambda: of_commands() > before + 1)
    run.end()
    assert run.failures == []
    assert run.history().crashes == []


def test_a_lock_that_a_waiting_multilock_may_hold_has_a_bound() -> None:
    names = ["torture-0", "torture-sem", "torture-several-0", "torture-several-1"]
    locks = _locks_of(History([{"lock": name} for name in names]), 22.0, 5.0)
    assert locks["torture-0"] == {"kind": "lock"}
    assert {name: locks[name].get("progress_s") for name in names[1:]} == {
        "torture-sem": None,
        "torture-several-0": 27.0,
        "torture-several-1": 27.0,
    }


def test_a_process_of_the_resource_ends_with_its_block(tmp_path: Path) -> None:
    with Resource(tmp_path / "r", tmp_path / "r.log") as resource:
        pid = resource._process.pid
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)
