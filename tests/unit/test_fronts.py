"""Fronts: Python finds fast what each acquire reads of them; what is told by other threads arrives."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import holdfast
import holdfast.asyncio
from holdfast._core.record import LeaseRecord
from holdfast._front import base
from holdfast._front.home import Body, Home

URL = "redis://127.0.0.1:1"
#: CPython 3.11 keeps 30 attributes in place, but for one or two that it reserves, and those of others in a dictionary.
MOST = 28


def test_the_front_of_threads_has_few_attributes() -> None:
    with holdfast.connect(URL) as locks:
        assert len(vars(locks._session.driver)) <= MOST


async def _attributes() -> int:
    async with holdfast.asyncio.connect(URL) as locks:
        assert locks._session.driver.home is not None  # which it remembers
        return len(vars(locks._session.driver))


def test_the_front_of_tasks_has_few_attributes() -> None:
    assert asyncio.run(_attributes()) <= MOST


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_a_loop_is_woken_though_a_signal_handler_has_raised_as_it_was_before(kind: type[BaseException]) -> None:
    """By the main thread, which reads replies for the tasks of another one; the engine tells them again."""
    future, wakes, front = Future[int](), list[Any](), Future[int]()

    def from_thread(wake: Callable[[], None]) -> None:
        if not wakes:
            wakes.append(wake)
            signal.raise_signal(signal.SIGUSR1)
        wakes.append(wake)

    def handler(number: int, frame: FrameType | None) -> None:
        raise kind

    loop = SimpleNamespace(key=object(), running=lambda: None, from_thread=from_thread)
    home = Home(front, loop)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(kind):
            home.ring(future)
        home.ring(future)
    finally:
        signal.signal(signal.SIGUSR1, before)
    wakes[-1]()
    assert len(wakes) == 2 and future.done()


def test_a_block_that_begins_as_its_lease_is_lost_is_cancelled() -> None:
    """The engine finds the loss at any moment of another thread."""

    class Block(Body):
        __slots__ = ()

        def _enter(self) -> None:
            record.lose("expired")

        def _strike(self) -> None:
            struck.append(self)

    struck, record = list[Any](), LeaseRecord("name", "token", 1, 1_000, 0.0)
    block = Block(object(), lambda call, *args: call(*args), record)
    assert struck == [block]


def test_what_is_held_is_released_at_exit_though_another_thread_makes_a_client() -> None:
    class Fronts(list[Any]):
        looks = 0

        def __iter__(self) -> Iterator[Any]:
            self.looks += 1
            if self.looks == 1:
                raise RuntimeError("Set changed size during iteration")
            return super().__iter__()

    locks = holdfast.connect(URL)
    base._close_all(Fronts([locks._session.driver]))
    assert locks._session.driver.ended


def test_a_loop_whose_flush_was_interrupted_behind_its_requests_flushes_once_more() -> None:
    """As a signal handler does that raises while the loop begins to read the connection."""
    flushes, sent, front = list[Callable[[], None]](), list[Any](), Future[int]()

    def watched() -> None:
        raise KeyboardInterrupt

    def put_all(asks: list[Any]) -> None:
        assert asks, "there is something to send"
        sent.extend(asks)

    front.closed = False  # type: ignore[attr-defined]
    loop = SimpleNamespace(collects=True, soon=lambda call, *args: flushes.append(partial(call, *args)))
    home = Home(front, loop)
    server: Any = SimpleNamespace(put_all=put_all, link=SimpleNamespace(watched=watched))
    ask: Any = SimpleNamespace(may_lie=False)
    home.put(server, ask)
    with pytest.raises(KeyboardInterrupt):
        flushes.pop()()
    server.link = None
    flushes.pop()()
    assert (sent, flushes) == ([ask], [])
