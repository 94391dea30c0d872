"""Looking through what other threads change meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from holdfast._core.snapshot import snapshot


def test_a_collection_that_changes_is_looked_through_again() -> None:
    numbers = dict.fromkeys(range(3))
    looks = 0

    def each() -> Iterator[int]:
        for number in numbers:
            yield number
            numbers[looks + number + 10] = None

    class Numbers:
        def __iter__(self) -> Iterator[int]:
            nonlocal looks
            looks += 1
            return each() if looks < 3 else iter(numbers)

    assert snapshot(Numbers()) == list(numbers)
    assert looks == 3


def test_a_stack_that_is_too_deep_is_told() -> None:
    """Waiting for it to be less deep would take forever."""

    class Endless(list[int]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            self.looks += 1
            return iter(self) if self.looks < 100_000 else super().__iter__()

    with pytest.raises(RecursionError):
        snapshot(Endless())


def test_what_a_signal_handler_raises_comes_out() -> None:
    class Stop(RuntimeError):
        pass

    def stop(*_: object) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise Stop

    class Interrupted(list[int]):
        def __iter__(self) -> Iterator[int]:
            signal.raise_signal(signal.SIGUSR1)
            return super().__iter__()

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(Stop):
            snapshot(Interrupted())
    finally:
        signal.signal(signal.SIGUSR1, before)
