"""Driving generators by hand: steps that a test writes once for both APIs, and protocols without a driver."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from holdfast._core.effects import Effect, Protocol, driver

__all__ = ["arun_steps", "drive", "driven", "run_steps"]


def run_steps(steps: Generator[Any, Any, Any]) -> Any:
    """Threads: what a step gives is its result."""
    try:
        step = next(steps)
        while True:
            step = steps.send(step)
    except StopIteration as end:
        return end.value


async def arun_steps(steps: Generator[Any, Any, Any]) -> Any:
    """asyncio: what a step gives is awaited, and what that raises is raised in the step."""
    try:
        step = next(steps)
        while True:
            try:
                result = await step if inspect.isawaitable(step) else step
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value


@contextmanager
def driven(
    now: Callable[[], float] | float = 1000.0,
    random: Callable[[], float] = lambda: 0.5,
    unlisten: Callable[[str], object] = lambda token: None,
) -> Iterator[None]:
    """Have protocols in this block see this clock, and these random numbers."""
    clock = now if callable(now) else lambda: now
    closed = {"listens": lambda token, key: False, "unlisten": unlisten}
    before = driver.set(SimpleNamespace(now=clock, random=random, **closed))
    try:
        yield
    finally:
        driver.reset(before)


def drive(
    protocol: Protocol[Any],
    perform: Callable[[Effect[Any]], Any],
    now: Callable[[], float] | float = 1000.0,
    random: Callable[[], float] = lambda: 0.5,
    unlisten: Callable[[str], object] = lambda token: None,
) -> Any:
    """Run a protocol to its end; what `perform` raises is thrown into it, KeyboardInterrupt too."""
    result: Any = None
    error: BaseException | None = None
    with driven(now, random, unlisten):
        try:
            for _ in range(10_000):
                effect = protocol.send(result) if error is None else protocol.throw(error)
                result, error = None, None
                try:
                    result = perform(effect)
                except (Exception, KeyboardInterrupt) as raised:
                    error = raised
            raise AssertionError("the protocol does not end")
        except StopIteration as end:
            return end.value
