"""A real IPython kernel, as Jupyter runs it: cells that are interrupted, a kernel that is restarted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from testbed.waiting import eventually

PATIENCE_S = 60.0


class Kernel:
    """A kernel and what its cells print."""

    def __init__(self, url: str) -> None:
        from jupyter_client.manager import KernelManager

        self.manager: Any = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env={**os.environ, "HOLDFAST_URL": url})
        self.client: Any = None
        self.connect()

    def connect(self) -> None:
        if self.client is not None:
            self.client.stop_channels()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_S)

    def begin(self, cell: str) -> str:
        message: str = self.client.execute(cell, stop_on_error=False)  # what comes next is run all the same
        return message

    def end(self, message: str) -> str:
        """Wait for the end of a cell: "ok", or the name of its error."""
        while True:
            reply = self.client.get_shell_msg(timeout=PATIENCE_S)
            if reply["parent_header"].get("msg_id") == message:
                return str(reply["content"].get("ename", reply["content"]["status"]))

    def run(self, cell: str) -> str:
        return self.end(self.begin(cell))

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(valkey_server: embedded.Server) -> Iterator[Kernel]:
    kernel = Kernel(valkey_server.url)
    try:
        assert kernel.run("import time, holdfast\nlocks = holdfast.connect()") == "ok"
        yield kernel
    finally:
        kernel.close()


@pytest.fixture
def locks(valkey_server: embedded.Server) -> Iterator[holdfast.Client]:
    with holdfast.connect(valkey_server.url) as locks:
        yield locks


def test_a_cell_that_is_interrupted_gives_back(kernel: Kernel, locks: holdfast.Client, unique_name: str) -> None:
    lock = locks.lock(unique_name)
    cell = kernel.begin(f"with locks.lock({unique_name!r}, ttl=600):\n    time.sleep(600)")
    eventually(lock.locked, "the cell holds it", PATIENCE_S)
    kernel.manager.interrupt_kernel()
    assert kernel.end(cell) == "KeyboardInterrupt"
    with lock.acquire(timeout=PATIENCE_S):
        waiting = kernel.begin(f"locks.lock({unique_name!r}, ttl=600).acquire()")
        eventually(lock.waiters, "the next cell waits", PATIENCE_S)
        kernel.manager.interrupt_kernel()
        assert kernel.end(waiting) == "KeyboardInterrupt"
        eventually(lambda: not lock.waiters(), "it has left the queue", PATIENCE_S)
    lock.acquire(timeout=PATIENCE_S).release()


def test_a_lease_outlives_its_cell(kernel: Kernel, locks: holdfast.Client, unique_name: str) -> None:
    """In a variable it is renewed until the cell that releases it, run again or not; `del` does not release it."""
    assert kernel.run(f"lease = locks.lock({unique_name!r}, ttl=5).acquire()") == "ok"
    assert kernel.run("time.sleep(6); lease.ensure_held()") == "ok"
    assert kernel.run(f"locks.lock({unique_name!r}).acquire()") == "AlreadyHeld"
    assert kernel.run("lease.release()") == "ok"
    locks.lock(unique_name).acquire(timeout=PATIENCE_S).release()


def test_a_lease_that_a_cell_shows_is_kept(kernel: Kernel, locks: holdfast.Client, unique_name: str) -> None:
    assert kernel.run(f"locks.lock({unique_name!r}, ttl=5).acquire()") == "ok"
    assert kernel.run("time.sleep(6); Out[max(Out)].ensure_held()") == "ok"
    assert locks.lock(unique_name).locked()
    assert kernel.run("Out[max(Out)].release()") == "ok"
    locks.lock(unique_name).acquire(timeout=PATIENCE_S).release()


def test_cells_that_await(kernel: Kernel, locks: holdfast.Client, unique_name: str) -> None:
    assert kernel.run("import asyncio, holdfast.asyncio\nclient = holdfast.asyncio.connect()") == "ok"
    assert kernel.run(f"lease = await client.lock({unique_name!r}, ttl=5).acquire()") == "ok"
    assert kernel.run("await asyncio.sleep(6); lease.ensure_held()") == "ok"
    assert locks.lock(unique_name).locked()
    cell = kernel.begin(f"await client.lock({unique_name + 'b'!r}).acquire(); await asyncio.sleep(600)")
    eventually(locks.lock(unique_name + "b").locked, "the cell holds it", PATIENCE_S)
    kernel.manager.interrupt_kernel()
    assert kernel.end(cell) in ("KeyboardInterrupt", "CancelledError")
    assert kernel.run("await lease.release(); await client.close()") == "ok"
    for name in (unique_name, unique_name + "b"):
        locks.lock(name).acquire(timeout=PATIENCE_S).release()


def test_a_kernel_that_is_restarted_releases(kernel: Kernel, locks: holdfast.Client, unique_name: str) -> None:
    assert kernel.run(f"lease = locks.lock({unique_name!r}, ttl=600).acquire()") == "ok"
    assert locks.lock(unique_name).locked()
    kernel.manager.restart_kernel(now=False)  # asks the kernel to end, as Jupyter's button does
    kernel.connect()
    locks.lock(unique_name).acquire(timeout=PATIENCE_S).release()
    assert kernel.run("import holdfast") == "ok"
