"""What people type: names, statuses, JSON, their own locks, and nothing left behind."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from holdfast.cli.exits import UsageError
from holdfast_lab import cli as command_line
from holdfast_lab import commands, runs
from holdfast_lab.adapter import load_factory
from holdfast_lab.faults import FAULTS
from holdfast_lab.handles import ENTRIES, entry_for_factory
from holdfast_lab.runs import UnknownName
from holdfast_lab.texts import listings

pytestmark = pytest.mark.timeout(300)  # many processes on a machine that may be busy


def test_list_names_everything() -> None:
    out = io.StringIO()
    assert commands.list_all(out=out) == 0
    for name in [*ENTRIES, *FAULTS]:
        assert f"  {name}" in out.getvalue()
    for field in ("idea", "flaw", "rung"):
        assert out.getvalue().count(f"    {field}: ") == len(ENTRIES)
    assert "5 servers" in out.getvalue()


def test_list_names_the_source_of_each_listing() -> None:
    out = io.StringIO()
    commands.list_all(out=out)
    assert [listing.text["en"] for listing in listings() if f"from: {listing.text['en']}\n" not in out.getvalue()] == []
    assert out.getvalue().count("from: As printed in ") == len(listings())


def test_list_for_programs() -> None:
    out = io.StringIO()
    commands.list_all(True, out)
    found = json.loads(out.getvalue())
    assert [scheme["name"] for scheme in found["schemes"]] == list(ENTRIES)
    assert sum(len(scheme["sources"]) for scheme in found["schemes"]) == len(listings())
    assert [fault["name"] for fault in found["faults"]] == list(FAULTS)


@pytest.mark.parametrize(
    "words, near", [(["set-nx-tokn", "none"], "'set-nx-token'"), (["setnx", "crash-holdin"], "'crash-holding'")]
)
def test_unknown_names_get_the_nearest_and_the_list(words: list[str], near: str) -> None:
    with pytest.raises(UnknownName) as caught:
        commands.run(*words)
    assert f"Did you mean {near}?" in str(caught.value)
    assert "Known: " in str(caught.value)
    with pytest.raises(UsageError, match="Did you mean"):
        command_line.main(["run", *words])


def test_far_off_names_get_the_list_only() -> None:
    with pytest.raises(UnknownName) as caught:
        runs.find_fault("qqqqqq")
    assert "Did you mean" not in str(caught.value)
    assert "failover" in str(caught.value)


def test_run_tells_and_its_status_says_safe_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["run", "set-nx-token", "none", "--width", "120"]) == 0
    said = capsys.readouterr().out
    assert "ENTERS" in said and "✓ safe" in said
    assert command_line.main(["run", "setnx-timestamp-inverted", "none", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["cells"]
    assert found["verdict"] == "exclusion violated" and found["safe"] is False
    assert found["runs"][0]["history"]["events"]


def test_a_fault_of_another_kind_of_scheme_is_not_played(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["run", "setnx", "two-stopped"]) == commands.NOT_PLAYED
    assert "several servers" in capsys.readouterr().out


def test_a_small_report(tmp_path: Path) -> None:
    err = io.StringIO()
    target = tmp_path / "r.html"
    assert (
        commands.report(str(target), schemes=["redlock"], faults=["none", "late-release"], clients="processes", err=err)
        == 0
    )
    assert "redlock late-release" in target.read_text()
    assert "2/2" in err.getvalue()
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    assert (
        commands.report(str(target), schemes=["redlock"], faults=["none", "late-release"], clients="processes", err=err)
        == 0
    )
    assert "2 of 2 cells have not changed" in err.getvalue(), "only what has changed is played again"
    assert "0 cells in" in err.getvalue() and "redlock late-release" in target.read_text()
    assert commands.report(str(tmp_path / "no" / "r.html"), err=err) == commands.USAGE


def test_verdicts_of_a_whole_fault_for_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only = [ENTRIES[name] for name in ("setnx", "set-nx-token")]
    pairs = runs.pairs
    monkeypatch.setattr(runs, "pairs", lambda entries=None, clients=("processes",): pairs(only, clients))
    page = ["-o", str(tmp_path / "r.html")]
    for more in ([], page):
        assert command_line.main(["run", "all", "crash-holding", "--clients", "processes", "--json", *more]) in (0, 1)
        found = {cell["scheme"]: cell for cell in json.loads(capsys.readouterr().out)["cells"]}
        assert found.keys() == {"setnx", "set-nx-token"}
        stuck = found["setnx"]
        assert stuck["verdict"] == stuck["theory"] == "blocked forever" and stuck["shares"] == {"blocked forever": 1}
        assert found["set-nx-token"]["agrees"] is True


# ---- users' own locks ----

HERE = str(Path(__file__).resolve().parents[2])
MINE = "lab.tests.mylocks"


@pytest.mark.parametrize(
    "spec, why",
    [
        ("nonsense", "MODULE:FACTORY"),
        ("no.such.module:x", "cannot be imported"),
        (f"{MINE}:nothing", "has no 'nothing'"),
        (f"{MINE}:__doc__", "not callable"),
    ],
)
def test_a_factory_that_is_none(spec: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        load_factory(spec)
    with pytest.raises(UsageError, match=why):
        command_line.main(["torture", spec])


def torture(factory: str, *faults: str) -> dict[str, runs.Cell]:
    entry = entry_for_factory(f"{MINE}:{factory}")
    cells = runs.play_many([(entry, runs.find_fault(fault)) for fault in faults], path=[HERE], jobs=4)
    return {cell.fault: cell for cell in cells}


def test_locks_of_users() -> None:
    cells = torture("redis_py", "none", "long-section", "late-release")
    assert [cells[fault].verdict for fault in ("none", "long-section", "late-release")] == [
        "safe",
        "exclusion violated",
        "safe",
    ]
    assert torture("careless", "none")["none"].verdict == "exclusion violated"
    broken = torture("broken", "none")["none"]
    assert broken.verdict == "failed" and "no such luck" in broken.runs[0].verdicts[0].sentence


def test_a_context_manager_that_blocks() -> None:
    cells = torture("Context", "none", "crash-holding")
    assert cells["none"].verdict == "safe", cells["none"].not_run
    assert cells["crash-holding"].verdict == "blocked forever", cells["crash-holding"].as_json(events=False)


def test_a_listing_that_nobody_can_get_any_more_gets_no_tick() -> None:
    cells = torture("IncrExpire", "crash-holding", "reply-lost", "release-unheld")
    assert [cells[fault].verdict for fault in ("crash-holding", "reply-lost", "release-unheld")] == [
        "blocked forever",
        "blocked forever",
        "exclusion violated",
    ]


def test_torture_prints_the_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(HERE)
    chosen = {name: FAULTS[name] for name in ("none", "pause-holding")}
    monkeypatch.setattr(runs, "FAULTS", chosen)
    out, err = io.StringIO(), io.StringIO()
    status = commands.torture(f"{MINE}:redis_py", out=out, err=err, output=str(tmp_path / "row.html"), show=True)
    assert status == commands.NOT_SAFE
    lines = out.getvalue().splitlines()
    assert lines[0] == f"{MINE}:redis_py"
    assert "none" in lines[1] and "✓  safe" in lines[1]
    assert "pause-holding" in lines[2] and "exclusion violated" in lines[2]
    assert "STOPPED" in out.getvalue()
    assert "pause-holding" in (tmp_path / "row.html").read_text()


# ---- nothing is left behind ----


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_what_was_started_is_removed_however_it_ends(number: signal.Signals, status: int, tmp_path: Path) -> None:
    lab = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "lab", "run", "setnx", "crash-holding"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process = psutil.Process(lab.pid)
        deadline = time.monotonic() + 90
        while True:  # until a server and the three clients are there
            family = process.children(recursive=True)
            names = [_name(child) for child in family]
            if any("valkey" in name for name in names) and sum("python" in name for name in names) >= 4:
                break
            assert lab.poll() is None and time.monotonic() < deadline, names
            time.sleep(0.02)
        lab.send_signal(number)
        assert lab.wait(60) == status
        _, alive = psutil.wait_procs(family, timeout=60)
        assert alive == []
        deadline = time.monotonic() + 60
        while list(tmp_path.iterdir()):
            assert time.monotonic() < deadline, list(tmp_path.iterdir())
            time.sleep(0.05)
    finally:
        lab.kill()
        lab.wait()


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.name())
    return ""
