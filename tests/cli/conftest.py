"""Commands look at all that lies on a server: theirs is one on which no other tests leave keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import embedded
from testbed import servers


@pytest.fixture(scope="session")
def server_for_commands() -> Iterator[embedded.Server]:
    with servers.start() as server:
        yield server


@pytest.fixture
def valkey_server(server_for_commands: embedded.Server) -> embedded.Server:
    return server_for_commands
