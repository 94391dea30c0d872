"""Durations, usage errors, help: what needs no server."""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.cli import exits, main
from holdfast.cli.options import duration, split_command
from holdfast.cli.report import clean
from tests.support.commands import holdfast


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("30", 30),
        ("30s", 30),
        ("500ms", 0.5),
        ("2m", 120),
        ("1.5h", 5400),
        ("1d", 86_400),
        (".5s", 0.5),
        ("0", 0),
        (" 7 ", 7),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


def test_a_duration_beyond_all_is_one_that_can_be_waited_for() -> None:
    """As by `top --json --interval`."""
    assert 1e8 < duration("9" * 400 + "d") < threading.TIMEOUT_MAX


@pytest.mark.parametrize("text", ["", "s", "-1", "1 s", "1w", "nan", "inf", "1e3", "1:30", "0x10", "٣"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="as in 500ms"):
        duration(text)


def test_the_first_dashes_part_ours_from_the_command() -> None:
    assert split_command(["x", "--", "a", "--", "b"], "run") == (["x"], ["a", "--", "b"])


USAGE_ERRORS = {
    "no NAME": (["run", "--", "true"], "NAME"),
    "no command": (["run", "x", "--"], "no command after --"),
    "no dashes": (["run", "x", "true"], "put the command after --"),
    "an unknown option": (["run", "--frob", "x", "--", "true"], "--frob"),
    "an abbreviation": (["run", "--no-w", "x", "--", "true"], "--no-w"),
    "two names": (["run", "x", "y", "--", "true"], "y"),
    "an empty name": (["run", "", "--", "true"], "name"),
    "a duration that is none": (["run", "--ttl", "5q", "x", "--", "true"], "5q"),
    "a ttl too short": (["run", "--ttl", "999ms", "x", "--", "true"], "--ttl"),
    "a ttl too long": (["run", "--ttl", "400d", "x", "--", "true"], "ttl"),
    "a negative wait": (["run", "--wait=-1", "x", "--", "true"], "-1"),
    "two ways to wait": (["run", "--wait", "1", "--no-wait", "x", "--", "true"], "--no-wait"),
    "two servers": (["run", "--url", "redis://h", "--embedded", "x", "--", "true"], "--embedded"),
    "at least more than at most": (["run", "--at-least", "9s", "--max-hold", "5s", "x", "--", "true"], "--at-least"),
    "slots that are none": (["run", "--slots", "0", "x", "--", "true"], "slots"),
    "shared and slots": (["run", "--shared", "--slots", "2", "x", "--", "true"], "--shared"),
    "an election without a command": (["elect", "x"], "--"),
    "a URL of another kind": (["run", "--url", "http://h", "x", "--", "true"], "http://h"),
    "a namespace with braces": (["run", "--namespace", "{a}", "x", "--", "true"], "namespace"),
    "an unknown command": (["frob"], "frob"),
    "status without NAME": (["status"], "NAME"),
    "doctor with NAME": (["doctor", "x"], "x"),
}


@pytest.mark.parametrize("words, named", USAGE_ERRORS.values(), ids=USAGE_ERRORS.keys())
def test_wrong_usage_is_one_line_and_64(words: list[str], named: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == exits.USAGE
    out, said = capfd.readouterr()
    assert out == ""
    assert said.startswith("holdfast: ") and said.count("\n") == 1 and named in said


def test_a_password_in_a_url_is_not_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", "frob://user:geheim@host", "x"]) == exits.USAGE
    assert "geheim" not in capfd.readouterr().err


def test_help_has_examples_and_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "status", "doctor", "elect"):
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0
        said = capsys.readouterr().out
        assert f"holdfast {command} --" in said and "examples:" in said and "exit status: " in said


def test_version_and_bare_call(capsys: pytest.CaptureFixture[str]) -> None:
    import holdfast as package

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {package.__version__}\n"
    assert main(["--help"]) == 0
    assert "run NAME -- CMD" in capsys.readouterr().out
    assert main([]) == exits.USAGE
    assert "run NAME -- CMD" in capsys.readouterr().err


def test_nobody_reads_our_output() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = holdfast_to(writes, "--help")
    finally:
        os.close(writes)
    assert done == 128 + 13


def holdfast_to(stdout: int, *words: str) -> int:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words], stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False
    )
    assert done.stderr == b""
    return done.returncode


def test_foreign_text_cannot_write_on_the_terminal() -> None:
    assert clean("a\x1b[2Jb\nc\u202ed é") == "a\\x1b[2Jb\\nc\\u202ed é"


def test_the_module_is_the_command() -> None:
    assert holdfast("--version").stdout.startswith(b"holdfast ")


def test_every_status_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    table = page[page.index("## Exit status") : page.index("## JSON")]
    documented = {int(number) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.M) for number in row.split(",")}
    defined = {value for name, value in vars(exits).items() if name.isupper() and not name.startswith("_")}
    defined.discard(exits.SIGNALLED)  # a base, not a status: "128 + N"
    assert documented == defined


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nope"], "there are: list, run, report, torture"),
        (["run", "setnx"], "FAULT"),
        (["run", "setnx", "none", "--width", "20"], "at least 60"),
        (["report", "--jobs", "x"], "at least 1"),
    ],
)
def test_wrong_usage_of_the_lab(words: list[str], says: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", *words]) == exits.USAGE
    assert says in capfd.readouterr().err


@pytest.mark.parametrize("command", ["", "list", "run", "report", "torture"])
def test_help_of_the_lab(command: str) -> None:
    done = holdfast("lab", *([command] if command else []), "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"usage: holdfast lab {command}".encode())


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), errors.CannotStartThread("can't start new thread")]
)
def test_what_the_system_refuses_is_no_mistake_of_ours(error: Exception) -> None:
    assert exits.status_of(error) == exits.SYSTEM == 71
    assert "internal" not in exits.sentence(error)


def test_a_mistake_of_ours_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from holdfast.cli import status

    def broken(words: list[str]) -> int:
        raise RuntimeError("oh")

    monkeypatch.setattr(status, "main", broken)
    monkeypatch.delenv("HOLDFAST_TRACEBACK", raising=False)
    assert main(["status", "x"]) == exits.INTERNAL
    assert capfd.readouterr().err == "holdfast: internal error: RuntimeError: oh (HOLDFAST_TRACEBACK=1 shows where)\n"
    monkeypatch.setenv("HOLDFAST_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        main(["status", "x"])
