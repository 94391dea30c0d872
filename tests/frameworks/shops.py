"""The examples for task queues have the same tasks: a server, the module, and its workers."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.servers import start
from testbed.waiting import eventually
from tests.frameworks.programs import Programs

__all__ = ["PATIENCE_S", "Shop", "opened"]

#: Workers are started and stopped meanwhile, on a machine that has other things to do.
PATIENCE_S = 120.0


class Shop:
    """The module with the tasks, and the programs that work for it, on a server of their own."""

    def __init__(self, tasks: Any, url: str, programs: Programs) -> None:
        self.tasks = tasks
        self.store = tasks.store
        self.locks = tasks.locks
        self.url = url
        self.programs = programs

    def until(self, key: str, length: int = 1) -> list[str]:
        """The list of that key, when it is that long."""

        def filled() -> bool:
            self.programs.check()
            return bool(self.store.llen(key) >= length)

        eventually(filled, f"{length} in {key!r}", PATIENCE_S)
        items: list[str] = self.store.lrange(key, 0, -1)
        return items

    def assert_in_turns(self, key: str, size: int) -> None:
        """Check that no item of the list was numbered beside another one."""
        numbers = [int(item.partition(".")[0]) for item in self.until(key, size)]
        assert numbers == list(range(1, size + 1))

    def assert_free(self, name: str) -> None:
        """Check that the lock can be acquired in less than the ttl of 30 s."""
        self.locks.lock(name).acquire(timeout=15).release()


@contextlib.contextmanager
def opened(module: str, folder: Path, **environment: str) -> Iterator[Shop]:
    """Nothing works there yet. The output of all programs is shown if the block fails."""
    with start() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_URL", server.url)
        tasks = importlib.import_module(module)
        programs = Programs(folder, HOLDFAST_URL=server.url, **environment)
        try:
            yield Shop(tasks, server.url, programs)
        finally:
            programs.close()
            print(programs.logs())
            tasks.locks.close()
            tasks.store.close()
