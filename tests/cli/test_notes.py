"""`holdfast run --note`, and where the note is shown."""

from __future__ import annotations

import json
from typing import Any

import holdfast as library
from holdfast import embedded
from tests.support.commands import holdfast, started, wait_for

NOTE = "deploy 1.4 by Ana"


def facts(url: str, *words: str) -> Any:
    report = json.loads(holdfast(*words, "--json", url=url).stdout)
    return report["holder"] if words[0] == "status" else report["locks"][0]


def test_every_command_shows_it(valkey_server: embedded.Server, look: Any, unique_name: str) -> None:
    url = valkey_server.url
    with (
        library.connect(url) as client,
        started("run", "--ttl", "1h", "--note", NOTE, unique_name, "--", "sleep", "600", url=url),
    ):
        lock = client.lock(unique_name)
        wait_for(lambda: getattr(lock.holder(), "note", None) == NOTE, "the note is there")
        said = {
            words: holdfast(*words, unique_name, url=url).stdout.decode() for words in (("list",), ("top", "--once"))
        }
        for table in said.values():
            assert f'"{NOTE}" holdfast run {unique_name} -- sleep (' in table
        assert f"note           {NOTE}\n" in holdfast("status", unique_name, url=url).stdout.decode()
        assert facts(url, "status", unique_name)["note"] == NOTE
        assert facts(url, "list", unique_name)["holders"][0]["note"] == NOTE
        assert facts(url, "top", unique_name, "--once")["holder"]["note"] == NOTE
        with started("watch", unique_name, "--json", url=url) as watching:
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["who"]["note"] == NOTE
        refused = holdfast("run", "--no-wait", unique_name, "--", "true", url=url)
        assert refused.returncode == 75 and repr(NOTE).encode() in refused.stderr
        # What another program has written there cannot write to the terminal.
        holder = lock.holder()
        assert holder is not None
        look.set(f"holdfast:note:{holder.token}", "\x1b[31mred\n\u202e")
        for words in (("list",), ("top", "--once"), ("status",), ("run", "--no-wait")):
            command = ("--", "true") if words[0] == "run" else ()
            done = holdfast(*words, unique_name, *command, url=url)
            said_of_it = (done.stdout + done.stderr).decode()
            assert "\\x1b[31mred\\n\\u202e" in said_of_it and "\x1b" not in said_of_it and "\u202e" not in said_of_it


def test_holders_that_share_it_have_their_own(valkey_server: embedded.Server, unique_name: str) -> None:
    url = valkey_server.url
    with library.connect(url) as client:
        rwlock = client.rwlock(unique_name, note=NOTE)
        with rwlock.read(), client.semaphore(unique_name, 2, note="a permit"):
            wait_for(lambda: f", {NOTE!r})" in holdfast("status", unique_name, url=url).stdout.decode(), "it is shown")


def test_what_is_no_line_is_wrong_usage(unique_name: str) -> None:
    for note in ("two\nlines", "x" * 257):
        done = holdfast("run", "--embedded", "--note", note, unique_name, "--", "true")
        assert done.returncode == 64 and b"a str of one line, of 1 to 256 bytes" in done.stderr


def test_an_empty_one_is_none(unique_name: str) -> None:
    assert holdfast("run", "--embedded", "--note", "", unique_name, "--", "true").returncode == 0
