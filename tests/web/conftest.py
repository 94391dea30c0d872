"""`holdfast web`, running, and a server to look at."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from holdfast import embedded
from tests.support.commands import PATIENCE_S, started


@pytest.fixture
def serve(valkey_server: embedded.Server) -> Iterator[Callable[..., str]]:
    """`serve(*words, url=…)`: the address of a page, running until the test ends."""
    with ExitStack() as running:

        def start(*words: str, url: str = valkey_server.url) -> str:
            process = running.enter_context(
                started("web", "--listen", "127.0.0.1:0", "--interval", "100ms", *words, url=url)
            )
            assert process.stdout is not None
            return process.stdout.readline().decode().strip()

        yield start


def get(address: str, path: str) -> Any:
    """Return the answer, as JSON."""
    with urllib.request.urlopen(address + path, timeout=PATIENCE_S) as answer:
        return json.load(answer)
