"""Whatever stdout is: ASCII, Latin-1, closed, a pipe that no one reads, no terminal, without colours."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import holdfast
from holdfast import embedded
from tests.support.commands import PATIENCE_S

#: What a terminal that knows only ASCII cannot show.
NAME = "läger→1"

COMMANDS: dict[str, tuple[list[str], int]] = {
    "usage": ([], 64),
    "help": (["--help"], 0),
    "help of run": (["run", "--help"], 0),
    "version": (["--version"], 0),
    "doctor": (["doctor"], 0),
    "doctor --json": (["doctor", "--json"], 0),
    "status": (["status", NAME], 0),
    "status --json": (["status", "--json", NAME], 0),
    "run": (["run", "free→", "--", "true"], 0),
    "run in vain": (["run", "--no-wait", NAME, "--", "true"], 75),
    "elect": (["elect", "free→", "--", "true"], 0),
    "wrong": (["rün→"], 64),
}
#: Python's own way to a UTF-8 locale is closed, but arguments are read as UTF-8.
ENCODINGS = {"ascii": "ascii", "ascii, strict": "ascii:strict", "latin-1": "latin-1", "utf-8": "utf-8"}


def run(server: embedded.Server, words: list[str], **settings: object) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "HOLDFAST_URL": server.url, **settings.pop("env", {})}  # type: ignore[dict-item]
    settings.setdefault("stdout", subprocess.PIPE)
    done: subprocess.CompletedProcess[bytes] = subprocess.run(  # type: ignore[call-overload]
        [*settings.pop("before", []), sys.executable, "-m", "holdfast", *words],  # type: ignore[misc]
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
        **settings,
    )
    assert b"Traceback" not in done.stderr, done.stderr
    assert b"internal error" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize(
    "encoding", ["ascii", *(pytest.param(name, marks=pytest.mark.thorough) for name in ENCODINGS if name != "ascii")]
)
def test_any_encoding(valkey_server: embedded.Server, encoding: str) -> None:
    commands = (
        COMMANDS if encoding == "ascii" else {name: COMMANDS[name] for name in ("help", "doctor", "status --json")}
    )
    with holdfast.connect(valkey_server.url) as locks, locks.lock(NAME):
        for name, (words, status) in commands.items():
            done = run(valkey_server, words, env={"PYTHONIOENCODING": ENCODINGS[encoding], "NO_COLOR": "1"})
            assert done.returncode == status, (name, done.stderr)
            assert b"\x1b" not in done.stdout
            if "--json" in words:
                told = json.loads(done.stdout.decode(ENCODINGS[encoding].partition(":")[0]))
                assert told["ok"] and told.get("name", NAME) == NAME


def test_a_closed_stdout(valkey_server: embedded.Server) -> None:
    before = ["sh", "-c", 'exec "$@" >&-', "sh"]
    for name in ("help", "version", "doctor", "doctor --json", "run"):
        words, status = COMMANDS[name]
        done = run(valkey_server, words, before=before)
        assert done.returncode == status, (name, done.stderr)


def test_a_reader_that_has_gone(valkey_server: embedded.Server) -> None:
    for name in ("help", "doctor", "status --json"):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = run(valkey_server, COMMANDS[name][0], stdout=writer)
        finally:
            os.close(writer)
        assert done.returncode == 128 + 13, (name, done.stderr)
        assert done.stderr == b""


def test_a_full_disk(valkey_server: embedded.Server) -> None:
    """No mistake of ours."""
    for name in ("help", "version", "doctor", "status --json"):
        with open("/dev/full", "wb") as full:
            done = run(valkey_server, COMMANDS[name][0], stdout=full)
        assert done.returncode == 71, (name, done.stderr)
        assert done.stderr.startswith(b"holdfast: the system says: No space left on device"), done.stderr


HUGE = "9" * 400


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--ttl", HUGE],
        ["run", "--ttl", "1e400"],
        ["run", "--ttl", "nan"],
        ["run", "--ttl", "-1"],
        ["run", "--wait", "inf"],
        ["run", "--wait", "x" * 5000],
        ["run", "--max-hold", HUGE],
        ["run", "--slots", "9" * 5000],
        ["run", "--at-least", HUGE],
        ["run", "--url", "redis://localhost/abc"],
        ["run", "--url", "redlock://a,b,c?restart_delay=1e400"],
        ["elect", "--ttl", HUGE],
        ["elect", "--ttl", "0.0000001"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_numbers_that_are_none_are_wrong_usage(valkey_server: embedded.Server, words: list[str]) -> None:
    done = run(valkey_server, [*words, "name", "--", "true"])
    assert done.returncode == 64, done.stderr
    assert len(done.stderr) < 1_000 and done.stderr.startswith(b"holdfast: ")


def test_a_wait_without_end(valkey_server: embedded.Server) -> None:
    for wait in ("99999999999999999999d", HUGE):
        done = run(valkey_server, ["run", "--wait", wait, "a wait without end", "--", "true"])
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["list"], ["status", "{name}"]], ids=lambda words: words[0])
def test_json_has_no_control_characters(valkey_server: embedded.Server, unique_name: str, words: list[str]) -> None:
    """A terminal obeys C1 controls and bidi overrides, and a name may hold any."""
    name = f"{unique_name}\x9b31m\x7f\u202e\U000e0001→\x1b"
    with holdfast.connect(valkey_server.url) as client, client.lock(name):
        done = run(valkey_server, [words[0], "--json", *(word.format(name=name) for word in words[1:])])
    said = done.stdout.decode()
    assert said[:-1].isprintable() and said.endswith("\n"), said
    assert name in json.dumps(json.loads(said), ensure_ascii=False).replace("\\u001b", "\x1b")
