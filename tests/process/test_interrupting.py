"""`interrupt_on_lost`: the block of a lost lease ends in the main thread, and nothing else is interrupted."""

from __future__ import annotations

import asyncio
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import holdfast
import holdfast.asyncio
from holdfast import embedded
from holdfast.interrupting import SIGNAL, Interrupted, interrupt_on_lost
from testbed.waiting import PATIENCE_S, eventually

LONG_S = 4 * PATIENCE_S


@pytest.fixture
def locks(valkey_server: embedded.Server) -> Iterator[holdfast.Client]:
    with holdfast.connect(valkey_server.url, ttl=1) as locks:
        yield locks


@pytest.fixture
def taken(look: Any) -> Callable[[str], None]:
    """Take a lock away from its holder, who learns of it with the next renewal."""
    return lambda name: look.delete(f"holdfast:{{{name}}}")


def spin() -> None:
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        pass


@pytest.mark.parametrize(
    "body", [lambda: time.sleep(LONG_S), spin, threading.Event().wait], ids=["sleep", "spin", "wait"]
)
def test_a_block_is_interrupted(
    locks: holdfast.Client, taken: Callable[[str], None], unique_name: str, body: Callable[[], None]
) -> None:
    begun = time.monotonic()
    with pytest.raises(Interrupted, match=unique_name) as caught:
        # A renewal has two seconds to be answered, beside a body that spins.
        with locks.lock(unique_name, ttl=3) as lease, interrupt_on_lost(lease):
            taken(unique_name)
            body()
    assert caught.value.reason == "taken"
    assert time.monotonic() - begun < LONG_S
    assert pickle.loads(pickle.dumps(caught.value)).name == unique_name


def test_waiting_for_another_lock_is_interrupted(
    locks: holdfast.Client, taken: Callable[[str], None], valkey_server: embedded.Server, unique_name: str
) -> None:
    with holdfast.connect(valkey_server.url) as others, others.lock(unique_name + "b") as theirs:
        with pytest.raises(Interrupted, match=f"'{unique_name}'"):
            with locks.lock(unique_name) as lease, interrupt_on_lost(lease):
                taken(unique_name)
                locks.lock(unique_name + "b").acquire(timeout=LONG_S)
        theirs.ensure_held()
        eventually(lambda: others.lock(unique_name + "b").waiters() == 0, "it has left the queue")
    locks.lock(unique_name + "b").acquire(timeout=PATIENCE_S).release()


@pytest.mark.parametrize("lost", ["outer", "inner"])
def test_of_two_blocks_the_lost_one(
    locks: holdfast.Client, taken: Callable[[str], None], unique_name: str, lost: str
) -> None:
    outer, inner = locks.lock(unique_name + "outer"), locks.lock(unique_name + "inner")
    ended = []
    with pytest.raises(Interrupted, match=unique_name + lost):
        with outer as one, interrupt_on_lost(one):
            try:
                with inner as two, interrupt_on_lost(two):
                    taken(unique_name + lost)
                    time.sleep(LONG_S)
            finally:
                ended.append(one.held)
    assert ended == [lost == "inner"]


def test_a_loss_after_the_block_interrupts_nothing(
    locks: holdfast.Client, taken: Callable[[str], None], unique_name: str
) -> None:
    lease = locks.lock(unique_name).acquire()
    with interrupt_on_lost(lease):
        pass
    taken(unique_name)
    assert lease.lost.wait(PATIENCE_S)
    time.sleep(0.01)
    with pytest.raises(holdfast.LeaseLost):
        lease.release()


def test_it_comes_within_the_block_or_not_at_all(
    locks: holdfast.Client, taken: Callable[[str], None], unique_name: str
) -> None:
    """Signals all the time: whatever comes at the end of a block is raised before it has ended, or never."""
    lost = locks.lock(unique_name).acquire()
    taken(unique_name)
    assert lost.lost.wait(PATIENCE_S)
    main, stop = threading.main_thread().ident, threading.Event()
    assert main is not None

    def shoot() -> None:
        while not stop.is_set():
            signal.pthread_kill(main, SIGNAL)

    with locks.lock(unique_name + "held", ttl=60) as held, interrupt_on_lost(held):  # the handler is there
        shooter = threading.Thread(target=shoot)
        shooter.start()
        interrupted = 0
        try:
            for _ in range(2_000):
                try:
                    with interrupt_on_lost(lost):
                        pass
                except Interrupted:
                    interrupted += 1
                for _ in range(20):
                    pass  # outside: an exception here fails the test
        finally:
            stop.set()
            shooter.join()
    assert interrupted, "otherwise this has shown nothing"


def test_a_block_begins_while_another_thread_imports_asyncio(
    locks: holdfast.Client, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python lists a module before it has anything."""
    with locks.lock(unique_name) as lease:
        monkeypatch.setitem(sys.modules, "asyncio", ModuleType("asyncio"))
        with interrupt_on_lost(lease):
            lease.ensure_held()


def test_a_handler_of_the_program_is_left_alone(locks: holdfast.Client, unique_name: str) -> None:
    def theirs(number: int, frame: object) -> None:
        raise AssertionError("was not sent")

    before = signal.signal(SIGNAL, theirs)
    try:
        with locks.lock(unique_name) as lease:
            with pytest.raises(holdfast.ConfigurationError, match="SIGURG"):
                with interrupt_on_lost(lease):
                    raise AssertionError("entered")
        assert signal.getsignal(SIGNAL) is theirs
    finally:
        signal.signal(SIGNAL, before)


def test_where_it_cannot_work_it_is_refused(
    locks: holdfast.Client, valkey_server: embedded.Server, unique_name: str
) -> None:
    said: list[str] = []

    def enter(lease: Any) -> None:
        try:
            with interrupt_on_lost(lease):
                said.append("entered")
        except holdfast.ConfigurationError as error:
            said.append(str(error))

    async def main() -> None:
        async with holdfast.asyncio.connect(valkey_server.url) as client, client.lock(unique_name + "a") as theirs:
            enter(theirs)
            enter(lease)

    with locks.lock(unique_name) as lease:
        thread = threading.Thread(target=enter, args=(lease,))
        thread.start()
        thread.join()
        asyncio.run(main())
    assert ["another thread" in said[0], "asyncio cancels" in said[1], "an event loop" in said[2]] == [True] * 3, said
    assert all("lease.on_lost" in each for each in (said[0], said[2]))
