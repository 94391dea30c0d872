"""What tasks of trio need of their run, as `asyncio_loop` has it for asyncio.

Theory: trio cancels by level: where a scope is cancelled, whatever waits in it ends at once, clean-up included. So what
has to be done then is left to the engine, which goes on with it. A block under a lease has a scope of its own.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import socket
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import trio
from trio import Cancelled, lowlevel

from holdfast._front.home import Body
from holdfast._runtime.teller import report

__all__ = ["Cancelled", "TrioLoop", "is_done", "running", "task"]


def running() -> lowlevel.TrioToken | None:
    """The run whose task runs here, by its token."""
    return lowlevel.current_trio_token() if lowlevel.in_trio_task() else None


def task() -> lowlevel.Task | None:
    """The task that runs here."""
    return lowlevel.current_task() if lowlevel.in_trio_task() else None


def is_done(task: lowlevel.Task) -> bool:
    """True if it can leave no block any more."""
    return getattr(task.coro, "cr_frame", task) is None


class _Future:
    """What one task waits for."""

    __slots__ = ("_is_done", "_result", "_task")

    def __init__(self) -> None:
        self._task: lowlevel.Task | None = None
        self._is_done = False
        self._result: Any = None

    def done(self) -> bool:
        return self._is_done

    @lowlevel.enable_ki_protection
    def set_result(self, result: Any) -> None:
        """In the run of the task."""
        self._result, self._is_done = result, True
        task, self._task = self._task, None
        if task is not None:
            lowlevel.reschedule(task)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        if not self._is_done:
            self._task = lowlevel.current_task()
            try:
                await lowlevel.wait_task_rescheduled(self._abort)
            finally:
                self._task = None  # a signal handler may have raised before it waited: nothing wakes it then
        return self._result

    def _abort(self, _raise: object) -> lowlevel.Abort:
        self._task = None
        return lowlevel.Abort.SUCCEEDED


class _TrioBody(Body):
    __slots__ = ("_scope",)

    def _enter(self) -> None:
        self._scope = trio.CancelScope()
        self._scope.__enter__()
        self._strike = self._scope.cancel

    def _exit(self, error: BaseException | None) -> bool:
        if error is None:
            self._scope.__exit__(None, None, None)
            return False
        return self._scope.__exit__(type(error), error, error.__traceback__)


class TrioLoop:
    """One call of `trio.run`."""

    body = _TrioBody
    starter = inspect.getsourcefile(trio.run)
    #: Requests are sent at once: there is no end of a turn to wait for that would cost less.
    collects = False

    def __init__(self) -> None:
        self.key = lowlevel.current_trio_token()
        self.running, self.task = running, task
        self.future = _Future
        self.soon = self.from_thread = self.key.run_sync_soon
        self.sleep = trio.sleep

    def is_closed(self) -> bool:
        """True if it has ended."""
        try:
            self.key.run_sync_soon(int, idempotent=True)
        except trio.RunFinishedError:
            return True
        return False

    def is_running(self) -> bool:
        """True if it has not ended."""
        return not self.is_closed()

    def watch(self, _sock: socket.socket, _readable: Callable[[], None]) -> bool:
        """Sockets are read by the engine alone: to wait for one takes a task."""
        return False

    def unwatch(self, _sock: socket.socket) -> None:
        """Nothing is watched."""

    async def within(self, future: _Future, timeout_s: float | None) -> None:
        """Wait for it, that long at most."""
        with trio.move_on_after(math.inf if timeout_s is None else timeout_s):
            await future

    def tell(self, callback: Callable[[Any], Any], argument: Any, untold: dict[object, Any], ticket: object) -> None:
        """Call a user's function; what it returns is awaited in a task. `untold` has it by its ticket until its end.

        What it raises goes to `threading.excepthook`: it would end the whole run.
        """
        result = None
        try:
            result = callback(argument)
        except (Exception, SystemExit):
            report()
        finally:
            if inspect.iscoroutine(result):
                untold[ticket] = lowlevel.spawn_system_task(_finish, result, untold, ticket)
            else:
                untold.pop(ticket, None)

    async def forever(self) -> None:
        """Wait until the process ends."""
        await trio.sleep_forever()

    async def gather(self, makes: list[Callable[[], Coroutine[Any, Any, object]]], timeout_s: float) -> None:
        """Run them side by side, that long at most."""
        with trio.move_on_after(timeout_s):
            async with trio.open_nursery() as nursery:
                for make in makes:
                    nursery.start_soon(make)

    def shield(self) -> contextlib.AbstractContextManager[object]:
        """Return what keeps the end of the run from cancelling what runs in it."""
        return trio.CancelScope(shield=True)


async def _finish(coroutine: Coroutine[Any, Any, object], untold: dict[object, Any], ticket: object) -> None:
    try:
        await coroutine
    except (Exception, SystemExit):
        report()
    finally:
        untold.pop(ticket, None)
