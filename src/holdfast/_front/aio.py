"""How tasks of event loops wait for the engine: of asyncio, and of trio.

Laws: nothing here blocks a loop; however many tasks of a loop are answered at a time, that is one wake-up of it; what
was granted to a task that has left, or whose loop runs no more, is given back.

Theory: one client serves any number of event loops, each by a *home*: there requests of one turn of the loop are
collected, which are written together, tasks are woken, and losses are told. The engine reads the answers, whatever the
loop does meanwhile: it renews, and knows of losses, while the loop computes. Those are told to the loop when it runs.

What runs the calling task is found out at each call, by the loop of asyncio or the token of trio's run. So the classes
of the asyncio API are those of trio as well, and a program on anyio need not know which one it runs on.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from asyncio import _get_running_loop, current_task
from collections.abc import Awaitable, Callable
from functools import partial
from sys import modules
from typing import Any, NamedTuple, TypeVar

from holdfast._core.agent.agent import Outcome, Sent
from holdfast._core.agent.closing import TOLD_S
from holdfast._core.agent.renewals import quietly
from holdfast._core.effects import Protocol
from holdfast._core.record import LeaseRecord
from holdfast._core.snapshot import snapshot
from holdfast._core.standing import Standing
from holdfast._core.tenure import SOON_MS, SOON_S
from holdfast._core.waiting import Acquisition, Busy, Grant
from holdfast._engine.client import Client
from holdfast._engine.operation import Operation
from holdfast._engine.pack import PreparedRequest
from holdfast._engine.requests import Ask
from holdfast._engine.server import Server
from holdfast._front.asyncio_loop import AsyncioLoop
from holdfast._front.base import Front, Start
from holdfast._front.home import Home, Loop, closers
from holdfast._runtime.clock import clock
from holdfast._runtime.lazily import lazily
from holdfast.errors import CannotStartThread, ClientClosed, ConfigurationError, HoldfastError

__all__ = ["AioFront", "Home", "has_ended"]

R = TypeVar("R")

#: When this many tasks are known by numbers, those that have ended are forgotten.
_NUMBERS_MAX = 10_000
#: A loop that ends waits no longer than this until its locks are released, s.
_END_MAX_S = 2.0


_trio_loop: Any = None


def _trio() -> Any:
    """The module for trio, where that is loaded."""
    global _trio_loop
    if _trio_loop is None:
        _trio_loop = lazily("holdfast._front.trio_loop")
    return _trio_loop


def _running() -> object:
    """Return what runs the calling task: a loop of asyncio, the token of a run of trio, or None."""
    loop = _get_running_loop()
    if "trio" in modules and (loop is None or current_task(loop) is None):
        token: object = _trio().running()
        return loop if token is None else token
    return loop


def _task() -> Any:
    """Return the task that runs; None outside of one (a callback, another thread)."""
    try:
        task = current_task()
    except RuntimeError:
        task = None  # no event loop runs here
    return _trio().task() if task is None and "trio" in modules else task


class _Numbers(dict["weakref.ref[Any]", int]):
    """Numbers of tasks; one that was given to a task is never given to another one."""

    def __init__(self) -> None:
        super().__init__()
        self._next = itertools.count(2, 2)  # those of threads are odd
        self._max = _NUMBERS_MAX
        self._tasks: dict[int, weakref.ref[Any]] = {}

    def of(self, task: Any) -> int:
        """Return the number of that task in this process; 0 for None."""
        if task is None:
            return 0
        ref = weakref.ref(task)
        number = self.get(ref)
        if number is None:
            if len(self._tasks) >= self._max:
                self._forget()
            number = next(self._next)
            self._tasks[number] = ref  # first: a signal handler may raise in between
            self[ref] = number
        return number

    def task(self, number: int) -> Any:
        """Return the task of that number; None when it has gone."""
        ref = self._tasks.get(number)
        return None if ref is None else ref()

    def _forget(self) -> None:
        for ref, number in snapshot(self.items()):
            if ref() is None:
                self._tasks.pop(number, None)
                self.pop(ref, None)
        self._max = max(_NUMBERS_MAX, 2 * len(self._tasks))


_numbers = _Numbers()


def has_ended(number: int) -> bool:
    """True if the task of that number can leave no block any more."""
    task = _numbers.task(number)
    return task is None or (task.done() if hasattr(task, "done") else _trio().is_done(task))


class _Waits(NamedTuple):
    """A task's wait for what is no lease."""

    home: Home
    undo: Callable[[], None]


class AioFront(Front):
    """What the asyncio API asks of one client."""

    def _join(self, client: Client) -> None:
        #: Tasks that wait for each other here, or are about to.
        self.turning: set[int] = set()
        #: By the tokens of what tasks wait for that is no lease, where, and what gives it back.
        self.waiting: dict[str, _Waits] = {}
        self._homes: dict[int, Home] = {}
        self._here: Home | None = None
        super()._join(client)

    # -- who asks ---------------------------------------------------------------------------------

    @property
    def home(self) -> Home:
        """The home of the client in the running event loop."""
        here = self._here
        key = _running() if "trio" in modules else _get_running_loop()
        if here is None or here.loop.key is not key:
            here = self._homes.get(id(key))
            if key is None or here is None or here.loop.key is not key:
                here = self._enter(key)
            self._here = here
        return here

    def _enter(self, key: Any) -> Home:
        if key is None:
            raise ConfigurationError("event loop", None, "one of asyncio or trio; elsewhere use holdfast.Client")
        closed = [home for home in snapshot(self._homes.values()) if home.loop.is_closed()]
        if closed:
            self._undo_for(lambda loop: loop.is_closed())
        for home in closed:
            self._homes.pop(id(home.loop.key), None)
            home.detach()
            for record in self._end(home):
                self.spawn(quietly(record))
        loop: Loop = AsyncioLoop(key) if isinstance(key, asyncio.AbstractEventLoop) else _trio().TrioLoop()
        home = self._homes[id(key)] = Home(self, loop)
        return home

    def task(self) -> Any:
        """Return the running task; None outside of one (a callback, another thread)."""
        return _task()

    def me(self) -> int:
        """Return the number of the running task; 0 outside of one."""
        return _numbers.of(_task())

    def caller(self) -> tuple[Home, int]:
        """Return where the running task is at home, and its number."""
        home = self.home
        return home, _numbers.of(home.loop.task())

    @property
    def Cancelled(self) -> tuple[type[BaseException], ...]:
        """The exceptions by which tasks are ended from outside. Asks for no loop: a task may end as garbage."""
        return (asyncio.CancelledError, _trio().Cancelled) if "trio" in modules else (asyncio.CancelledError,)

    # -- running ----------------------------------------------------------------------------------

    async def run(self, protocol: Protocol[R], asker: Acquisition | None = None) -> R:
        """Have the engine run it, and wait for its end. `asker`: what is given back when its caller has left."""
        if asker is None:
            return await self._run(protocol, None)
        try:
            return await self._run(protocol, lambda: self.spawn(asker.give_back()), asker.token)
        finally:
            self.waiting.pop(asker.token, None)

    async def _run(self, protocol: Protocol[R], undo: Callable[[], None] | None, token: str = "") -> R:
        try:
            home = self.home
        except BaseException:
            protocol.close()
            raise
        future = home.loop.future()
        if undo is not None and token:
            self.waiting[token] = _Waits(home, undo)
        give_back = None if undo is None else partial(_undo, undo)
        operation = Operation(self.client, protocol, lambda: home.ring(future), give_back)
        try:
            home.read_less()
            self.engine.call(operation.begin)
            if self.engine.thread is None and not self.engine.runs():
                raise CannotStartThread(str(self.engine.trouble))
            while not operation.over:
                await future
                future = home.loop.future()
                while operation.chores:
                    await self._do(*operation.chores.popleft())
        except BaseException:
            operation.abandon(self.engine.call)
            raise
        return operation.take()  # type: ignore[no-any-return]

    async def _do(
        self, function: Callable[[Any], Any], argument: Any, told: Callable[[Any, BaseException | None], None]
    ) -> None:
        value, failed = None, None
        try:
            value = function(argument)
            if hasattr(value, "__await__"):
                value = await value
        except BaseException as error:
            failed = error
        self.engine.call(told, value, failed)

    # -- acquiring and releasing ------------------------------------------------------------------

    def ask(
        self, home: Home, first: PreparedRequest, token: str, deadline: float, standing: Standing | None = None
    ) -> Awaitable[Outcome | None]:
        """Send it with that token; its outcome, when it has stood where it stands; None where nothing can be sent."""
        future = home.loop.future()
        if (link := self._only.link) is not None and link.is_open:
            home.put(self._only, Ask(first, token, deadline, future, home))
        else:
            future.set_result(None)
        return future if standing is None else _stand(home, future, standing)

    def stands(self, key: str, asked_at: float) -> Standing:
        """Make what a task waits by in the server's queue."""
        home = self.home
        return Standing(key, asked_at, home.loop.future(), home.ring)

    def acquire(
        self, asked: Any, first: PreparedRequest | None, start: Start, sent: Sent | None
    ) -> Awaitable[Grant | Busy]:
        """Acquire by the protocol, which is told what came of the first request, if that was sent."""
        return self._run(self._acquires(asked, first, start, sent), asked.undo)

    async def take_turn(self, asked: Any) -> LeaseRecord | None:
        """Wait for a moment for what is handed on to its turn; None: it has to ask, or to wait for longer."""
        turn, timeout_s = asked.turn, asked.timeout_s
        taken: LeaseRecord | None = None
        if asked.lock._ttl_ms > SOON_MS and (timeout_s is None or timeout_s > SOON_S):
            home = self.home
            future = home.loop.future()
            turn.bell = partial(home.ring, future)
            try:
                # Once: whatever else it is woken for is for the protocol to see.
                if not turn.is_called() and not self.closed:
                    await home.loop.within(future, SOON_S)
            finally:
                turn.bell = None
            taken = None if self.closed else turn.take(clock())
        return taken

    def wait_in_line(self, asked: Any) -> Awaitable[LeaseRecord | Grant | Busy]:
        """Have a protocol wait for its turn, and do all the rest."""
        return self._run(asked.lock._wait_in_line(asked.turn, asked.timeout_s), asked.undo)

    def release(self, record: LeaseRecord, first: PreparedRequest | None, outcome: Outcome | None) -> Awaitable[bool]:
        """Release by the protocol, which is told what came of the first request, if that was sent."""
        return self.run(self._releases(record, first, outcome))

    def _tell(self, server: Server, later: Ask) -> bool:
        """As that of `Front`; sent with what others ask for in this turn of the loop."""
        if not server.is_open:
            return False
        later.may_lie = True
        self.home.put(server, later)
        return True

    # -- the end ----------------------------------------------------------------------------------

    def closed_error(self, error: HoldfastError | None = None) -> BaseException:
        """`ClientClosed`, or that error; a cancellation at the interpreter's end."""
        if self.exiting and _get_running_loop() is not None:
            return asyncio.CancelledError()
        return ClientClosed() if error is None else error

    def look_after(self) -> None:
        """Have loops do what a signal handler's exception has kept them from."""
        for home in snapshot(self._homes.values()):
            home.look_after()

    def leave(self) -> None:
        """Give back what was left by loops that run no more."""
        self._undo_for(lambda loop: not loop.is_running())

    def left(self) -> None:
        """Leave the loops."""
        for home in snapshot(self._homes.values()):
            home.soon(home.detach)
            if not home.loop.is_running():
                home.detach()

    def _undo_for(self, is_over: Callable[[Loop], bool]) -> None:
        """Do for loops that run no more what their tasks would do."""
        for home in snapshot(self._homes.values()):
            for ask in home.left_over() if is_over(home.loop) else ():
                self.engine.call(self._only.take_over, [ask])
        for token, asks in [*snapshot(self.waiting.items()), *snapshot(self.asking.items())]:
            if isinstance(asks.home, Home) and is_over(asks.home.loop):
                self.waiting.pop(token, None)
                self.asking.pop(token, None)
                asks.undo()

    async def close(self) -> None:
        """End what waits, tell those who hold, release what they held; wait for that. Idempotent."""
        home = self.home
        future = home.loop.future()
        me = _task()
        assert me is not None
        outermost = me not in closers
        later = closers.setdefault(me, [])
        self.begin_close(partial(home.ring, future))
        try:
            await future
        finally:
            if outermost:
                del closers[me]
                for call in later:
                    call()

    def _end(self, home: Home) -> list[LeaseRecord]:
        """Tell those who hold something in a loop that has ended; returns what that was."""
        ended = []
        for record in self.schedule:
            if record.home is home and not record.check_expired(clock()):
                self.schedule.remove(record)
                record.lose("closed")
                ended.append(record)
        return ended

    async def end_here(self) -> None:
        """At the end of the running loop: tell those who hold in it, and release what they held."""
        home = self.home
        ended = self._end(home)
        until = clock() + TOLD_S
        with home.loop.shield():
            while not all(map(home.has_told, ended)) and clock() < until:
                await home.loop.sleep(0.001)
            await home.loop.gather([partial(self._release_here, record) for record in ended], _END_MAX_S)
        home.read_no_more()

    async def _release_here(self, record: LeaseRecord) -> None:
        """Release it; what the loop does not wait for, the process may have been stopped, goes on behind its end."""
        try:
            await self.run(quietly(record))
        except BaseException:
            self.spawn(quietly(record))
            raise


async def _stand(home: Home, asked: Awaitable[Outcome | None], standing: Standing) -> Outcome | None:
    """Wait for what came of its request, and then for its message."""
    outcome = await asked
    if outcome is not None and (left_s := standing.left_s(outcome, clock())) > 0:
        await home.loop.within(standing.bell, left_s)
    return outcome


def _undo(undo: Callable[[], None], result: Any) -> None:
    """In the engine: give back the result of an operation whose caller has left."""
    if type(result) is not Busy:
        undo()
