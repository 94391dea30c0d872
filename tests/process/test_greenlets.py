"""gevent and eventlet, in processes of their own: it works, or is refused; never silently something else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import embedded

LONG = pytest.mark.thorough
LIBRARIES = pytest.mark.parametrize("library", ["gevent", "eventlet"])


def run(server: embedded.Server, library: str, when: str, *actions: str, **environment: str) -> list[dict[str, Any]]:
    """Run the program and return what it reports, one object for each action and one for its end."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.support.greenlets",
            library,
            when,
            server.url,
            str(server.pid),
            *actions,
        ],
        capture_output=True,
        env={**os.environ, **environment},
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


@LIBRARIES
@pytest.mark.parametrize(
    "when", [pytest.param("first", marks=LONG), pytest.param("imported", marks=LONG), "made", "preloaded"]
)
def test_one_greenlet_is_inside(valkey_server: embedded.Server, library: str, when: str) -> None:
    """Patched first, after the import, after the client was made, in a worker forked from a master that used it."""
    crowd, end = run(valkey_server, library, when, "crowd")
    assert crowd == {"most": 1, "results": ["done"], "done": 100}
    assert end["closed_s"] < 10


@LIBRARIES
def test_greenlets_hand_a_lock_on(valkey_server: embedded.Server, library: str) -> None:
    line, _ = run(valkey_server, library, "first", "line")
    assert (line["results"], line["leases"], line["lines"]) == (["alone"], 50, 0)
    assert line["tokens"] < 50, "some have had the token of the one before them"


@LIBRARIES
@pytest.mark.parametrize("when", ["used", pytest.param("contended", marks=LONG)])
def test_a_client_in_use_before_the_patch_is_refused(valkey_server: embedded.Server, library: str, when: str) -> None:
    crowd, end = run(valkey_server, library, when, "crowd")
    assert (crowd["most"], crowd["done"]) == (0, 0)
    (said,) = crowd["results"]
    assert said.startswith("ConfigurationError") and library in said and "make the client after it" in said
    assert end["closed_s"] < 5


@LIBRARIES
@LONG
def test_half_a_patch_is_refused(valkey_server: embedded.Server, library: str) -> None:
    (made,) = run(valkey_server, library, "half", "crowd")
    assert made["refused"].startswith("ConfigurationError") and "thread" in made["refused"]
    crowd, _ = run(valkey_server, library, "half later", "crowd")
    (said,) = crowd["results"]
    assert said.startswith("ConfigurationError") and "thread" in said and crowd["most"] == 0


@LIBRARIES
def test_what_threads_can_greenlets_can(private_server: Callable[..., embedded.Server], library: str) -> None:
    life, hanging, _ = run(private_server(), library, "first", "life", "hanging")
    assert life == {
        "renewed": "HELD",
        "same": True,
        "outsiders": ["AcquireTimeout", "AcquireTimeout"],
        "handed": ["handed over", "released"],
        "permits": 2,
    }
    assert hanging["result"] in ("OutcomeUnknown", "AcquireTimeout", "ServerUnreachable")
    assert hanging["ticks"] > 5, "the others go on meanwhile"
    assert hanging["took_s"] < 10


@LIBRARIES
@LONG
def test_a_quorum_of_greenlets(private_server: Callable[..., embedded.Server], library: str) -> None:
    servers = [private_server() for _ in range(3)]
    more = ",".join(str(server.port) for server in servers[1:])
    crowd, _ = run(servers[0], library, "first", "quorum", MORE_PORTS=more)
    assert crowd == {"most": 1, "results": ["done"], "done": 10}


@LIBRARIES
def test_tasks_are_refused(valkey_server: embedded.Server, library: str) -> None:
    """An event loop would stop all greenlets, the engine's among them, and wait for it."""
    patch = {"gevent": "gevent.monkey.patch_all()", "eventlet": "eventlet.monkey_patch()"}[library]
    program = f"""
import {patch.rpartition(".")[0]}
{patch}
import sys, holdfast
with holdfast.connect(sys.argv[1]) as locks:
    try:
        locks.tasks
    except holdfast.ConfigurationError as error:
        print(error)
    with locks.lock("{library}-and-tasks"):
        print("held")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, valkey_server.url],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said, held = done.stdout.splitlines()
    assert said.startswith(f"tasks = '{library}' is not allowed") and held == "held", done.stderr
