"""The lab's servers are private: nothing on this machine but the run itself can use them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast_lab import runs
from holdfast_lab.bodies import Forks
from holdfast_lab.handles import ENTRIES
from holdfast_lab.proxy import Link, Request
from holdfast_lab.servers import Clock, LabServer, no_compiler
from holdfast_lab.stage import Stage


async def said(port: int, *commands: str) -> list[str]:
    """The first words of the answers on a new connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write("".join(f"{command}\r\n" for command in commands).encode())
        return [(await reader.readline()).decode().split()[0] for _ in commands]
    finally:
        writer.close()


def test_without_the_password_nothing_can_be_done() -> None:
    asyncio.run(_without_the_password())


async def _without_the_password() -> None:
    forks = Forks()
    stage = Stage(ENTRIES["setnx"], "none", "", forks)
    notes: list[Request] = []
    try:
        await stage.open()
        (server,) = stage.servers
        assert server.process.port == 0, "it listens on no TCP port"
        assert server.process.unix_path.stat().st_mode & 0o077 == 0
        link = Link("A", server, notes.append)
        stage.also_close(link)
        await link.open()
        assert await said(link.port, "PING", "SET x 1") == ["-NOAUTH", "-NOAUTH"]
        assert await said(link.port, "AUTH guessed", "GET x") == ["-WRONGPASS", "-NOAUTH"]
        assert await said(link.port, f"AUTH {stage.password}", "GET x") == ["+OK", "$-1"]
        # It is not in the list of processes.
        arguments = Path(f"/proc/{server.process.pid}/cmdline")
        if arguments.exists():
            assert stage.password not in arguments.read_text()
    finally:
        await stage.close()
        forks.close()


def test_two_runs_have_different_passwords() -> None:
    forks = Forks()
    try:
        one, other = (Stage(ENTRIES["setnx"], "none", "", forks) for _ in range(2))
        assert one.password != other.password
        assert len(one.password) >= 32
    finally:
        forks.close()


@pytest.mark.parametrize("scheme", ["setnx", "holdfast", "redis-py", "holdfast-quorum"])
def test_a_password_is_in_no_history(scheme: str) -> None:
    cell = runs.play(runs.find_entry(scheme), runs.find_fault("none"))
    text = json.dumps(cell.as_json(), default=str)
    assert "AUTH" not in text
    assert "HELLO" not in text


def test_a_key_that_ran_out_and_was_written_again_with_the_same_value() -> None:
    """Between two looks; `php-loop` writes the same word for everyone."""
    assert asyncio.run(_written_again("SET", "NX")) == [("key", "expiry", None), ("key", "B", "room")]


def test_a_key_that_was_prolonged() -> None:
    assert asyncio.run(_written_again("PEXPIRE")) == [("prolonged", "B", None)]


async def _written_again(verb: str, *how: str) -> list[tuple[str, str, str | None]]:
    reported: list[tuple[str, dict[str, Any]]] = []
    server = LabServer("server", lambda kind, **data: reported.append((kind, data)), "secret")
    await server.start()
    try:
        await server.ask("SET", "k", "room", "PX", 60_000 if verb == "PEXPIRE" else 100)
        await server.look(by="A")
        reported.clear()
        while verb == "SET" and await server.ask("EXISTS", "k"):
            await asyncio.sleep(0.01)
        await server.ask(verb, "k", *(("room", "PX") if verb == "SET" else ()), 90_000, *how)
        await server.look(by="B", verb=verb)
    finally:
        await server.close()
    return [(kind, data["by"], data.get("now")) for kind, data in reported]


@pytest.mark.skipif(no_compiler() is not None, reason=str(no_compiler()))
def test_a_program_that_is_still_open_for_writing_is_tried_again() -> None:
    """A process forked by another thread has it open until it runs its own program: ETXTBSY."""

    async def started() -> None:
        clock = Clock()
        server = LabServer("server", lambda kind, **data: None, "secret", clock)
        held = clock.program.open("ab")
        asyncio.get_running_loop().call_later(0.3, held.close)
        try:
            await server.start()
            assert await server.ask("PING") in ("PONG", b"PONG")
        finally:
            await server.close()

    asyncio.run(started())
