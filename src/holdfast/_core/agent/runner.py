"""Drives protocols, each suspended at one effect at a time.

Laws: a protocol is driven to its end, or told that it is not; what is thrown into it is thrown at the effect that it
interrupted; an answer whose asker has gone on is dropped; all of it happens in one thread.

Theory: an effect has a number (`ticket`), and whatever would end the wait for it carries that number. So answers,
timers and interruptions race without being cancelled: the first one ends the wait, and the others find another number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast._core.effects import AwaitTurn, AwaitWake, Effect, Listen, Protocol, Sleep, Spawn, driver
from holdfast._core.failure import RequestFailed

#: What performs an effect returns this where the result comes later, by `Runner.resume`.
SUSPENDED = object()
#: Told the result of a protocol, or what it has raised.
OnEnd = Callable[[Any, BaseException | None], None]
#: What callers may wait for as long as it takes: none of it begins when the client is closed.
WAITS = frozenset({Listen, AwaitWake, AwaitTurn, Sleep})
#: A protocol that is abandoned and wants to wait again is told again, this often at most.
_TOLD_MAX = 20


def closed(failure: RequestFailed | None = None) -> RequestFailed:
    """The end of what waits for a client that is closed; after `failure`, which is not tried again."""
    node, maybe = ("", False) if failure is None else (failure.node, failure.maybe_executed)
    return RequestFailed("closed", "the client is closed", node, maybe_executed=maybe, transient=False)


class Abandoned(BaseException):
    """Thrown into a protocol whose caller has left, or that is not driven any further: it cleans up, and ends."""


def abandon(protocol: Protocol[Any]) -> None:
    """End a protocol that will not be driven any more: what it does then is done as far as that takes no time.

    Never raises. Nothing that it spawns begins. It is not told by `GeneratorExit`, as by `coroutine.close()`: that must
    not be answered with an effect, and a protocol that spawns a give-back on its way out does so.
    """
    if getattr(protocol, "cr_frame", None) is None or getattr(protocol, "cr_running", False):
        return  # it has ended; or a thread of the parent ran it when the process was forked
    if getattr(protocol, "cr_suspended", True) is False:
        protocol.close()  # it has not begun
        return
    for _ in range(_TOLD_MAX):
        try:
            effect = protocol.throw(Abandoned())
            while isinstance(effect, Spawn):
                effect.protocol.close()
                effect = protocol.send(None)
        except BaseException:
            return


class Task:
    """A protocol under way. `background`: no caller waits for it."""

    __slots__ = ("background", "done", "effect", "label", "on_end", "protocol", "ticket", "timer")

    def __init__(self, protocol: Protocol[Any], label: str, background: bool, on_end: OnEnd | None) -> None:
        self.protocol = protocol
        self.label = label
        self.background = background
        self.on_end = on_end
        self.ticket = 0
        self.done = False
        #: What it waits for; None while it runs, and before and after.
        self.effect: Effect[Any] | None = None
        #: What would end the wait at a time, as `Runner.later` has returned it.
        self.timer: Any = None


class Runner:
    """Runs the protocols of one client."""

    #: Seconds on the local clock that neither jumps nor stops in suspend; a random number in [0, 1).
    now: Callable[[], float]
    random: Callable[[], float]
    #: `soon(act, *args)` calls it when what runs now has returned, before anything else comes from outside;
    #: `later(seconds, act, *args)` after that time, and returns what `forget` takes, so that it is not called.
    soon: Callable[..., None]
    later: Callable[..., Any]
    forget: Callable[[Any], None]
    #: As of `Driver`.
    listens: Callable[[str, str], bool]
    unlisten: Callable[[str], None]

    def __init__(self) -> None:
        #: All that are under way, in the order in which they began.
        self.tasks: dict[Task, None] = {}
        #: Nothing is begun for a caller any more.
        self.closing = False
        self._perform: dict[type[Effect[Any]], Callable[[Task, Any], Any]] = {Spawn: self._spawn}

    def unhandled(self, task: Task, error: BaseException) -> None:
        """Called when a protocol in the background has raised an exception."""
        raise NotImplementedError

    # -- tasks ------------------------------------------------------------------------------------

    def begin(self, protocol: Protocol[Any], label: str, on_end: OnEnd | None = None) -> Task:
        """Run it for a caller, now: not by a protocol that runs."""
        task = Task(protocol, label, False, on_end)
        self.tasks[task] = None
        self.drive(task, None, None)
        return task

    def spawn(self, protocol: Protocol[Any], label: str = "") -> Task:
        """Run it in the background, from the next moment on. It handles its own trouble."""
        return self._add(Task(protocol, label, True, None))

    def _spawn(self, task: Task, effect: Spawn) -> None:
        self.spawn(effect.protocol, f"{task.label}/bg")

    def is_for_caller(self, task: Task) -> bool:
        """True if a caller waits for the task."""
        return not task.background

    def _add(self, task: Task) -> Task:
        self.tasks[task] = None
        self.soon(self._start, task)
        return task

    def _start(self, task: Task) -> None:
        if not task.done:
            self.drive(task, None, None)

    def resume(self, task: Task, ticket: int, value: Any, error: BaseException | None = None) -> None:
        """End the wait for that effect, if it lasts."""
        if task.ticket == ticket:
            if type(error) is RequestFailed:
                error.about(task.effect)
            self.drive(task, value, error)

    def interrupt(self, task: Task, error: BaseException) -> None:
        """Throw it into the protocol where that waits; it cleans up, and ends in its own time."""
        if task.effect is not None:
            self.drive(task, None, error)

    def drive(self, task: Task, value: Any, error: BaseException | None) -> None:
        """Resume a task, and run it to its next suspension, or to its end."""
        protocol, perform = task.protocol, self._perform
        driving = driver.set(self)
        task.effect = None
        task.ticket += 1
        if task.timer is not None:
            self.forget(task.timer)
            task.timer = None
        try:
            while True:
                if error is None:
                    effect = protocol.send(value)
                else:
                    if type(error) is RequestFailed and self.closing and not task.background:
                        error = closed(error)
                    thrown, error = error, None
                    effect = protocol.throw(thrown)
                kind = type(effect)
                if self.closing and kind in WAITS and not task.background:
                    error = closed()
                    continue
                task.effect = effect
                try:
                    value = perform[kind](task, effect)
                    if value is SUSPENDED:
                        return
                except Exception as failed:
                    error = failed
                task.effect = None
                task.ticket += 1
        except StopIteration as end:
            self._ended(task, end.value, None)
        except BaseException as raised:
            self._ended(task, None, raised)
        finally:
            driver.reset(driving)  # what the outer one drives may be another client's

    def abandon(self, told: BaseException | None = None) -> None:
        """Drive nothing any further: in a process that was forked, and where nothing could be sent any more.

        `told`: what callers who still wait are told. In a child they are not there.
        """
        driver.set(self)
        self.closing = True
        tasks, self.tasks = self.tasks, {}
        for task in tasks:
            task.ticket += 1
            task.effect, task.done = None, True
            abandon(task.protocol)
            if told is not None and task.on_end is not None:
                task.on_end(None, told)

    def _ended(self, task: Task, value: Any, error: BaseException | None) -> None:
        task.done = True
        self.tasks.pop(task, None)
        on_end, task.on_end = task.on_end, None  # an answer that comes late knows the task, and is to keep no caller
        if on_end is not None:
            on_end(value, error)
        elif error is not None:
            self.unhandled(task, error)
