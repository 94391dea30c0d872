"""An operation: who of caller and engine claims its outcome, and what becomes of what reached no caller."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from holdfast._core.agent.runner import SUSPENDED, Abandoned, Runner, Task
from holdfast._core.effects import Protocol, Sleep
from holdfast._engine.operation import Operation


class Made(Runner):
    """One whose acts are done when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.acts: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.raised: list[BaseException] = []
        self.asleep: list[tuple[Task, int]] = []
        self._perform[Sleep] = self._sleep

    def now(self) -> float:
        return 0.0

    def random(self) -> float:
        return 0.5

    def soon(self, act: Callable[..., object], *args: Any) -> None:
        self.acts.append((act, args))

    call = soon

    def later(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        raise NotImplementedError

    def forget(self, timer: Any) -> None:
        raise NotImplementedError

    def unhandled(self, task: Task, error: BaseException) -> None:
        self.raised.append(error)

    def _sleep(self, task: Task, effect: Sleep) -> Any:
        self.asleep.append((task, task.ticket))
        return SUSPENDED

    def go(self) -> None:
        """Do all there is to do."""
        while self.acts:
            act, args = self.acts.popleft()
            act(*args)

    def wake(self) -> None:
        """End the sleep of the protocols, in order."""
        asleep, self.asleep = self.asleep, []
        for task, ticket in asleep:
            self.resume(task, ticket, None)
        self.go()


class Played:
    """One operation whose protocol sleeps once, and grants."""

    def __init__(self, error: Exception | None = None) -> None:
        self.runner = Made()
        self.error = error
        self.seen: list[str] = []
        self.operation = Operation(self.runner, self._acquire(), lambda: self.seen.append("woken"), self._give_back)
        self.runner.call(self.operation.begin)

    async def _acquire(self) -> str:
        try:
            await Sleep(1.0)
        except Abandoned:
            self.seen.append("left")
            raise
        if self.error is not None:
            raise self.error
        self.seen.append("granted")
        return "lease"

    def _give_back(self, result: Any) -> Protocol[None]:
        async def undo() -> None:
            self.seen.append(f"gives back {result}")

        return undo()

    def leave(self) -> None:
        """As a caller that is interrupted."""
        self.operation.abandon(self.runner.call)


def test_what_the_engine_claims_is_delivered() -> None:
    played = Played()
    played.runner.go()
    played.runner.wake()
    assert played.operation.over and played.operation.result == "lease" and played.operation.error is None
    assert played.seen == ["granted", "woken"]


def test_a_failure_is_delivered() -> None:
    played = Played(ValueError("no"))
    played.runner.go()
    played.runner.wake()
    assert played.operation.over and isinstance(played.operation.error, ValueError)
    played.leave()
    played.runner.go()
    assert played.seen == ["woken"], "there is nothing to give back"


def test_who_leaves_before_it_has_begun_has_asked_for_nothing() -> None:
    played = Played()
    played.leave()
    played.runner.go()
    assert played.seen == [] and not played.runner.tasks and not played.operation.over


def test_who_leaves_while_it_waits_has_the_protocol_clean_up() -> None:
    played = Played()
    played.runner.go()
    played.leave()
    played.runner.go()
    assert played.seen == ["left"] and not played.runner.tasks and not played.operation.over
    assert not played.runner.raised


def test_what_was_granted_when_the_caller_had_left_is_given_back() -> None:
    """The caller has claimed it; the engine does not know yet, and the reply comes."""
    played = Played()
    played.runner.go()
    played.leave()
    claimed = list(played.runner.acts)
    played.runner.acts.clear()
    played.runner.wake()
    played.runner.acts.extend(claimed)
    played.runner.go()
    assert played.seen == ["granted", "gives back lease"] and not played.operation.over


def test_what_was_delivered_and_arrived_nowhere_is_given_back() -> None:
    """As when a signal handler raises between the wake-up and the return."""
    played = Played()
    played.runner.go()
    played.runner.wake()
    played.leave()
    played.runner.go()
    assert played.seen == ["granted", "woken", "gives back lease"]


def test_leaving_twice_is_leaving_once() -> None:
    played = Played()
    played.runner.go()
    played.leave()
    played.leave()
    played.runner.go()
    assert played.seen == ["left"]


def test_each_grant_is_delivered_or_given_back_once() -> None:
    """The claim is one step: caller and engine at the same time, again and again."""
    both = delivered = 0
    for _ in range(2_000):
        played = Played()
        played.runner.go()
        start = threading.Barrier(2)

        def caller(played: Played = played, start: threading.Barrier = start) -> None:
            start.wait(10)
            if not played.operation.over:
                played.leave()

        thread = threading.Thread(target=caller)
        thread.start()
        start.wait(10)
        played.runner.wake()
        thread.join(10)
        played.runner.go()
        both += played.seen.count("gives back lease")
        delivered += played.operation.over
        gone = played.seen.count("left") + played.seen.count("gives back lease")
        assert gone == 1 or (gone == 0 and played.operation.over), played.seen
    assert delivered, "the engine came first at least once"


def test_chores_are_done_by_the_caller_and_their_errors_are_told() -> None:
    played = Played()
    told: list[tuple[Any, BaseException | None]] = []
    threads: list[int] = []

    def chore(argument: Any) -> str:
        threads.append(threading.get_ident())
        return f"did {argument}"

    def wrong(argument: Any) -> None:
        raise KeyboardInterrupt

    played.operation.tell(chore, 1, lambda value, error: told.append((value, error)))
    played.operation.tell(wrong, 2, lambda value, error: told.append((value, error)))
    assert played.seen == ["woken", "woken"] and not threads
    played.operation.do_chores(played.runner.call)
    played.runner.go()
    assert threads == [threading.get_ident()] and told[0] == ("did 1", None)
    assert told[1][0] is None and isinstance(told[1][1], KeyboardInterrupt)


def test_without_anything_to_give_back_an_abandoned_result_is_dropped() -> None:
    runner = Made()

    async def look() -> int:
        await Sleep(1.0)
        return 1

    operation = Operation(runner, look(), lambda: pytest.fail("its caller has left"))
    operation.begin()
    operation.abandon(lambda act: None)
    runner.wake()
    assert operation.result == 1 and not operation.over and not runner.tasks


def test_who_leaves_right_behind_its_beginning_has_the_protocol_clean_up() -> None:
    played = Played()
    begin, args = played.runner.acts.popleft()
    begin(*args)
    played.operation.abandon(lambda leave: leave())
    played.runner.go()
    assert played.seen == ["left"] and not played.runner.tasks and not played.operation.over
