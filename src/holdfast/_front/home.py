"""What a client has in one event loop: there it asks, is woken, and is told of losses.

Laws: what other threads call takes no lock and never waits; a loop that is closed is no trouble of theirs; a
cancellation from elsewhere is never mistaken for that of a block whose lease is lost, nor swallowed.
"""

from __future__ import annotations

import contextlib
import socket
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

from holdfast._core.record import LeaseRecord
from holdfast._core.snapshot import snapshot
from holdfast._engine.link import Link
from holdfast._engine.requests import Ask
from holdfast._engine.server import Server
from holdfast._runtime.handlers import raised_by_handler
from holdfast._runtime.waits import Settable

#: What runs tasks: an `AsyncioLoop`, or a `TrioLoop`, which is not there without trio.
Loop: TypeAlias = Any


def wake(future: Any, result: Any = None) -> None:
    """In its loop: end the wait for it."""
    if not future.done():
        future.set_result(result)


#: Tasks that wait for a client to be closed, and what is to be called when they have.
closers: dict[Any, list[Callable[[], object]]] = {}


class Body:
    """A block that runs under a lease, in a task that is cancelled when the lease is lost.

    `soon` calls something in the loop of the task, from any thread.
    """

    __slots__ = ("_cancelled", "_open", "_soon", "_strike", "record", "task")

    #: Cancels the task: a function in C, which no handler interrupts as it begins.
    _strike: Callable[[], object]

    def __init__(self, task: Any, soon: Callable[..., None], record: LeaseRecord) -> None:
        self.task = task
        self._soon = soon
        self.record = record
        self._cancelled = False
        self._open = True
        self._enter()
        record.blocks += (self,)
        record.on_loss += (self.cancel,)  # not through the lease, which must be free to go
        if record.reason is not None:
            self.cancel("")  # told twice is told once

    def cancel(self, reason: str) -> None:
        """Cancel the block under a lost lease. By the engine, or by a task that has found the loss."""
        for _ in range(2 if reason != "forked" else 0):
            self._soon(self._cancel, reason)  # the second one, where a handler has raised as the first one began

    def _cancel(self, reason: str) -> None:
        if self._open and not self._cancelled:
            later = closers.get(self.task)
            if later is not None:
                # It closes the client, and may do so to the end.
                later.append(partial(self._soon, self._cancel, reason))
            else:
                self._cancelled = True
                self._strike()

    def leave(self, error: BaseException | None) -> bool:
        """End the block, which ended with `error`; returns whether that is our cancellation, and ours alone.

        Raises what is left of a group of errors without our cancellation.
        """
        self._open = False
        record = self.record
        record.blocks = tuple([block for block in record.blocks if block is not self])
        return self._exit(error)

    # -- by the library that runs the task --------------------------------------------------------

    def _enter(self) -> None:
        raise NotImplementedError

    def _exit(self, error: BaseException | None) -> bool:
        raise NotImplementedError


def innermost(blocks: list[Body], task: Any) -> Body:
    """Take the innermost block of that task, or else the innermost one."""
    at = next((at for at in reversed(range(len(blocks))) if blocks[at].task is task), -1)
    return blocks.pop(at)


class Flag(Settable):
    """What `asyncio.Event` is; set by any thread."""

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        super().__init__()
        self._home = home

    async def wait_s(self, timeout_s: float | None) -> bool:
        """Wait until it is set; whether it is."""
        home = self._home.front.home
        future = home.loop.future()
        self.rings[id(future)] = partial(home.ring, future)
        try:
            if not self._is_set:
                await home.loop.within(future, timeout_s)
        finally:
            self.rings.pop(id(future), None)
        return self._is_set


class Home:
    """What a client has in one event loop."""

    def __init__(self, front: Any, loop: Loop) -> None:
        self.front = front
        self.loop = loop
        #: Callbacks that have not ended, and the tasks that await what they return.
        self._untold: dict[object, Any] = {}
        self._out: list[Ask] = []
        self._woken: deque[tuple[Any, Any]] = deque()
        self._waking = False
        #: The connection that the loop reads, too, by which socket; whether it does, and has found what is for it.
        self._link: Link | None = None
        self._twin: socket.socket | None = None
        self.reads = self.found = False
        self._guest = _end_with_the_loop(weakref.ref(front), loop)
        # Where a loop is run by those who close its generators at its end, this one ends what is held there.
        with contextlib.suppress(StopIteration):
            self._guest.asend(None).send(None)

    # -- asking -----------------------------------------------------------------------------------

    def put(self, server: Server, ask: Ask) -> None:
        """Send it: at once where nothing is under way, else with what others ask for in this turn of the loop."""
        out = self._out
        if self.reads or (not out and self.read_on()):
            ask.may_lie = True  # read by the loop, or by the engine where that is late
        if not out:
            link = self._link
            if (link is not None and link is server.link and not link.owes) or not self.loop.collects:
                server.put_all([ask])
                return
            self.loop.soon(self._flush, server)
        out.append(ask)

    def _flush(self, server: Server) -> None:
        out = self._out
        try:
            if out:
                server.put_all(out)
                out.clear()
            if server.link is not self._link:
                self._read_too(server.link)
        except BaseException:  # a signal handler: once more, since what was sent twice counts once
            self.loop.soon(self._flush, server)
            raise

    def _read_too(self, link: Link | None) -> None:
        """Have the loop read the connection where it finds something: that spares two switches of threads."""
        self.read_no_more()
        if link is None or self.front.closed or (twin := link.watched()) is None:
            return
        self._twin, self._link = twin, link
        if not self.read_on():
            self._twin = None
            twin.close()

    def _readable(self) -> None:
        link = self._link
        if link is None or link.ended:
            self.read_no_more()
            return
        self.found = False
        link.read_here()
        if not self.found:
            self.read_less()

    def read_less(self) -> None:
        """Leave reading to the engine where nothing is under way for this loop, which would wake for others."""
        link, twin = self._link, self._twin
        if self.reads and link is not None and twin is not None and not (self._out or link.lies):
            self.reads = False
            self.loop.unwatch(twin)

    def read_on(self) -> bool:
        """Read again what comes, for a request of this loop; False where others do."""
        link = self._link
        if self._twin is not None and link is not None and not link.ended:
            self.reads = self.loop.watch(self._twin, self._readable)
        return self.reads

    def read_no_more(self) -> None:
        """Leave all reading to the engine."""
        twin, self._twin, self._link, self.reads = self._twin, None, None, False
        if twin is not None:
            self.loop.unwatch(twin)
            twin.close()

    def answered(self, asks: Iterable[Ask]) -> None:
        """Wake the tasks that wait for these, in whatever thread has read the replies."""
        if self.loop.running() is self.loop.key:
            self.found = True
            for ask in asks:
                future = ask.answer
                if not future.done():  # `wake`, without the call: of many tasks at a time
                    future.set_result(ask.outcome)
        else:
            self._wake_soon([(ask.answer, ask.outcome) for ask in asks])

    def ring(self, future: Any) -> None:
        """Wake the task that waits for it, in any thread."""
        if self.loop.running() is self.loop.key:
            wake(future)
        else:
            self._wake_soon([(future, None)])

    def _wake_soon(self, woken: list[tuple[Any, Any]]) -> None:
        """By another thread."""
        self._woken.extend(woken)
        if not self._waking:
            try:
                self._waking = True
                self.loop.from_thread(self._wake)
            except BaseException as error:
                self._waking = False  # first: else nothing would wake the loop any more
                if not isinstance(error, RuntimeError) or raised_by_handler(error):
                    raise
                self._woken.clear()  # the loop is closed; its tasks end as garbage, and give back what they asked for

    def _wake(self) -> None:
        self._waking = False  # first: what comes from now on wakes the loop again
        woken = self._woken
        while woken:
            wake(*woken[0])
            woken.popleft()  # behind that: a handler may raise in between

    def look_after(self) -> None:
        """By the engine: call again what a handler's exception may have ended as it began, or before."""
        with contextlib.suppress(RuntimeError):  # of a loop that is closed
            if self._woken:
                self.loop.from_thread(self._wake)
            if self._out:
                self.loop.from_thread(self._flush, self.front._only)

    def left_over(self) -> list[Ask]:
        """Take what was not sent before the loop stopped."""
        if self.loop.is_running():
            return []
        out, self._out = self._out, []
        return out

    # -- telling ----------------------------------------------------------------------------------

    def enter(self, record: LeaseRecord) -> Body:
        """Begin a block under that lease, which is cancelled when that is lost."""
        task = self.front.task()
        if task is None:
            raise RuntimeError("a lease can be entered in a task only")
        body: Body = self.loop.body(task, self.soon, record)
        return body

    def flag(self) -> Flag:
        """Make what tasks wait for and any thread sets."""
        return Flag(self)

    def by_engine(self, act: Callable[[], None]) -> None:
        """Do it where no handler interrupts."""
        self.front.engine.by_it(act)

    def prepare(self) -> None:
        """There will be something to tell: the loop does that."""

    def tell(self, callback: Callable[[Any], Any], argument: Any) -> None:
        """Call a user's function in the loop; what it returns is awaited in the background."""
        ticket = object()
        self._untold[ticket] = None
        self.soon(self.loop.tell, callback, argument, self._untold, ticket)

    def soon(self, function: Callable[..., object], *args: Any) -> None:
        """Call it in the loop, from whichever thread; not at all where that is closed."""
        with contextlib.suppress(RuntimeError):
            if self.loop.running() is self.loop.key:
                self.loop.soon(function, *args)
            else:
                self.loop.from_thread(function, *args)

    def has_told(self, record: LeaseRecord) -> bool:
        """True if its blocks and callbacks have ended, but for those that wait for the end themselves."""
        tasks = *snapshot(self._untold.values()), *(block.task for block in record.blocks)
        return not self.loop.is_running() or all(task in closers for task in tasks)

    # -- the end ----------------------------------------------------------------------------------

    def detach(self) -> None:
        """Leave the loop; in it, or when it does not run."""
        self.read_no_more()
        if self.loop.running() is self.loop.key:
            with contextlib.suppress(StopIteration, RuntimeError):
                self._guest.aclose().send(None)


async def _end_with_the_loop(ref: weakref.ref[Any], loop: Loop) -> AsyncGenerator[None, None]:
    """Ends what is held in an event loop when that ends."""
    try:
        yield
    finally:
        front = ref()
        if front is not None and not front.closed and loop.running() is loop.key:
            await front.end_here()
