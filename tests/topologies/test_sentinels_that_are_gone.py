"""Sentinels named in the URL that do not answer: those behind them are asked soon."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testbed.topologies import Topology, WithSentinel
from tests.support.apis import Api


class Rude:
    """Hangs up on everyone, and counts them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.visits = 0
        threading.Thread(target=self._main, daemon=True).start()

    def _main(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                visitor, _ = self._listener.accept()
                self.visits += 1
                visitor.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def gone() -> Iterator[list[Rude]]:
    three = [Rude() for _ in range(3)]
    yield three
    for each in three:
        each.close()


def test_each_is_asked_once(
    shared_topologies: Callable[[str], Topology], api: Api, gone: list[Rude], unique_name: str
) -> None:
    """redis-py would ask each of them four times, with growing pauses: seconds, while leases run out."""
    topology: Any = shared_topologies("sentinel")
    assert isinstance(topology, WithSentinel)
    there = topology.url.split("//")[1]
    locks = api.connect(f"redis+sentinel://{','.join(each.address for each in gone)},{there}")
    locks.lock(unique_name).try_acquire().release()
    assert [each.visits for each in gone] == [1, 1, 1], "and then it goes to the one that answered first"
