"""Servers for all tests.

Each test process starts one server of a kind when a test first asks for it, and shares it from then on: such
tests use names of their own (``unique_name``) and flush nothing. A test that hurts its server asks for
``private_server``.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import redis

from holdfast import embedded
from tests.support import leaks, servers
from tests.support.servers import KINDS, Kind

# Who was started in the background by a shell, or by nohup, inherits that some signals are ignored, and would pass that
# on to the programs under test. These shall begin with the default, as from a terminal.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# The same examples in every run, so that what lands was tested; HYPOTHESIS_RANDOM=1 looks for new ones.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.load_profile("default" if os.environ.get("HYPOTHESIS_RANDOM") else "same")


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[Callable[[Kind], embedded.Server]]:
    """``shared_servers(kind)``: this process's server of that kind, started at first need."""
    started: dict[Kind, embedded.Server] = {}

    def get(kind: Kind) -> embedded.Server:
        if kind not in started:
            started[kind] = servers.start(kind)
        return started[kind]

    yield get
    for server in started.values():
        server.close()


@pytest.fixture(params=KINDS, scope="session")
def server_kind(request: pytest.FixtureRequest) -> Kind:
    """Runs the test once for every kind of server; what a machine lacks is skipped."""
    kind: Kind = request.param
    program = servers.executable(kind)
    if isinstance(program, str):
        pytest.skip(program)
    return kind


@pytest.fixture
def server(server_kind: Kind, shared_servers: Callable[[Kind], embedded.Server]) -> embedded.Server:
    """The shared server of each kind in turn."""
    return shared_servers(server_kind)


@pytest.fixture
def valkey_server(shared_servers: Callable[[Kind], embedded.Server]) -> embedded.Server:
    """The shared Valkey, for tests that gain nothing from other kinds."""
    return shared_servers("valkey")


@pytest.fixture
def url(server: embedded.Server) -> str:
    """URL of the shared server of each kind in turn."""
    return server.url


@pytest.fixture
def private_server() -> Iterator[Callable[..., embedded.Server]]:
    """``private_server(kind="valkey", **options)``: a server to be hurt; ended after the test."""
    started: list[embedded.Server] = []

    def start(kind: Kind = "valkey", **options: Any) -> embedded.Server:
        server = servers.start(kind, **options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture
def nothing_left(valkey_server: embedded.Server, unique_name: str) -> Iterator[None]:
    """Afterwards this process has no thread and no descriptor more, and no key of the test's stays for ever.

    For long tests, storms and whatever kills: `pytestmark = pytest.mark.usefixtures("nothing_left")`. It comes before
    the fixtures that a test asks for, so that it is finished after them.
    """
    before = leaks.take(objects=False)
    yield
    with redis.Redis.from_url(valkey_server.url, decode_responses=True) as look:
        found = leaks.wrong_keys(look, f"*{unique_name}*", gone_max=10_000)
    assert [each for each in found if not each.startswith("left: ")] == []
    leaks.check(before, objects=False)


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> str:
    """A lock name of the test's own, readable in MONITOR."""
    return servers.unique(re.sub(r"[^a-zA-Z0-9_]+", "-", request.node.name).strip("-"))
