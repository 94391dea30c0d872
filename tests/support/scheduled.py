"""The threads of a client under a schedule that a seed decides: every interleaving can be had, and had again.

    world = World(seed)
    with world.installed():
        world.run(scenario)         # scenario(world) is the first thread; world.spawn(f) starts others

Theory: all threads are real, and one runs at a time. Who runs may hand over at every *line* of the traced modules, and
where it waits: for a lock, an event, a thread's end, a selector, a server. A driver that avoids locks, so that signal
handlers may use it, races between its lines; a scheduler that switches at locks alone would see nothing of that. What
blocks is replaced by what asks the scheduler; time is virtual, and moves when no one can run. The server is the
simulator's, which runs the scripts that ship. No thread that can run, and none that waits for a time: a deadlock.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import os
import queue
import random
import select
import selectors
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any, cast

import hiredis

from holdfast._core.failure import RequestFailed, refusal
from holdfast._engine.single import SingleTopology
from holdfast._lua import SCRIPTS
from sim.server import Refused, Server

__all__ = ["Deadlock", "Node", "World"]

#: What tells loggers and observers belongs to the process, and was made before any world: it stays outside.
_OUTSIDE = frozenset({"holdfast._reports.reporter", "holdfast._reports.log"})
#: A schedule of more steps than this goes round in circles.
_STEPS_MAX = 400_000
#: Where threads may be switched between two lines.
_TRACED = (
    *("/holdfast/_drivers/", "/holdfast/_runtime/waits.py"),
    *("/holdfast/_sync/", "/holdfast/_core/record.py"),
)
_FOREVER = float("inf")


class Deadlock(AssertionError):
    """No one can ever run again; or they run forever."""


class _Over(BaseException):
    """Ends the threads of a run that has failed."""


class _Task:
    """A thread of the run."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.baton = threading.Semaphore(0)
        self.ready: Callable[[], bool] | None = None
        self.until = _FOREVER
        self.waits_for = ""
        self.done = False
        self.ident = 0


class World:
    """One run. `eager`: how often threads are switched between lines; drawn from the seed when it is None."""

    def __init__(self, seed: int, eager: float | None = None) -> None:
        self.random = random.Random(seed)
        self.eager = self.random.choice((0.003, 0.02, 0.1, 0.3)) if eager is None else eager
        self.now_s = 1_000.0
        self.steps = 0
        self.switches = 0
        self.failures: list[str] = []
        self._tasks: list[_Task] = []
        self._real: list[threading.Thread] = []
        self._current: _Task | None = None
        self._over = False
        self._main_done = threading.Event()
        self._pausing = 0
        self.server = Server(lambda: int(self.now_s * 1_000_000) + 1_700_000_000_000_000)
        self.server.publish = self._publish
        self.server.numsub = lambda channel: len(self._inboxes.get(channel, ()))
        self._inboxes: dict[bytes, list[_Inbox]] = {}
        self.sockets: list[_Socket] = []
        self.node = Node(self)
        self.threading = _threading_for(self)
        self.socket = _passing(socket, socketpair=lambda: _pair(self))
        self.selectors = _passing(selectors, DefaultSelector=lambda: _Selector(self))
        self.queue = _passing(queue, SimpleQueue=lambda: _Queue(self))
        self.random_module = _passing(random, Random=lambda *_: random.Random(f"{seed}-jitter"))
        self._identities = random.Random(f"{seed}-identities")
        self.os = _passing(os, urandom=self._identities.randbytes)
        self.time = _passing(time, sleep=self.sleep, monotonic=self.clock, time=self.clock)

    def clock(self) -> float:
        """The time of this world, s."""
        return self.now_s

    # ---- threads ----

    def run(self, scenario: Callable[[World], object]) -> None:
        """`scenario`, and whatever it starts, to their ends. Raises what went wrong first."""
        self.spawn(lambda: scenario(self), "main")
        first = self._tasks[0]
        self._current = first
        first.baton.release()
        if not self._main_done.wait(60):
            self._fail("the run does not end")
            self._abandon()
        self._unwound(time.monotonic() + 10)
        for task in self._tasks:
            assert task.done or self._over, f"{task.name} lives on"
        if self.failures:
            raise AssertionError("\n".join(self.failures))

    def _unwound(self, until: float) -> None:
        """Wait for the ends of the real threads: what was cut short must not go on beside tests that come later."""
        for real in self._real:
            while real.ident is None and time.monotonic() < until:
                time.sleep(0.001)  # it is being started
            real.join(max(0.0, until - time.monotonic()))
            assert not real.is_alive(), f"{real.name} lives on"

    def spawn(self, function: Callable[[], object], name: str = "", *, daemon: bool = False) -> _Task:
        """A new thread; it can run from now on."""
        task = _Task(name or f"thread-{len(self._tasks)}", len(self._tasks))
        self._tasks.append(task)
        real = threading.Thread(target=self._main, args=(task, function), name=f"rig-{task.name}", daemon=True)
        self._real.append(real)
        real.start()
        return task

    def _main(self, task: _Task, function: Callable[[], object]) -> None:
        task.baton.acquire()
        task.ident = task.number + 1
        try:
            if not self._over:
                sys.settrace(self._trace)
                try:
                    function()
                finally:
                    sys.settrace(None)
        except _Over:
            pass
        except BaseException as error:
            lines = "".join(traceback.format_exception(error)[-6:])
            self._fail(f"{task.name} ended with {type(error).__name__}: {error}\n{lines}")
        task.done = True
        if all(each.done for each in self._tasks):
            self._main_done.set()
        else:
            with contextlib.suppress(_Over):
                self._next(task)

    def join(self, task: _Task, timeout_s: float | None = None) -> bool:
        """Wait for its end."""
        return self.wait(
            lambda: task.done, None if timeout_s is None else self.now_s + timeout_s, f"end of {task.name}"
        )

    def switch(self, always: bool = False) -> None:
        """Perhaps someone else goes on here."""
        task = self._current
        if task is None or self._pausing or task.done or self.afterwards():
            return
        if self._over:
            raise _Over
        self.steps += 1
        if self.steps > _STEPS_MAX:
            self._fail(f"more than {_STEPS_MAX} steps")
            raise _Over
        if always or self.random.random() < self.eager:
            self._next(task)

    def wait(self, ready: Callable[[], bool], until: float | None, what: str) -> bool:
        """The current thread waits until `ready()`, or until a time; whether it is ready."""
        task = self._current
        if self.afterwards():
            return True
        assert task is not None
        self.switch()
        if ready():
            return True
        task.ready, task.waits_for = ready, what
        task.until = _FOREVER if until is None else until
        self._next(task)
        return ready()

    def sleep(self, seconds: float) -> None:
        """Stand in for `time.sleep`."""
        self.wait(lambda: False, self.now_s + seconds, "time to pass")

    def _next(self, task: _Task) -> None:
        """Give the baton to a task that can run; returns when `task` has it again."""
        other = self._choose()
        if other is None:
            self._fail("deadlock: " + "; ".join(f"{each.name} waits for {each.waits_for}" for each in self._living()))
            self._abandon()
            raise _Over
        other.ready, other.until, other.waits_for = None, _FOREVER, ""
        if other is task:
            return
        self.switches += 1
        self._current = other
        other.baton.release()
        if task.done:
            return
        task.baton.acquire()
        if self._over:
            raise _Over

    def _living(self) -> list[_Task]:
        return [each for each in self._tasks if not each.done]

    def _choose(self) -> _Task | None:
        self._pausing += 1
        try:
            while True:
                living = self._living()
                able = [each for each in living if each.ready is None or each.until <= self.now_s or each.ready()]
                if able:
                    return self.random.choice(able)
                at = min((each.until for each in living), default=_FOREVER)
                if at == _FOREVER:
                    return None
                self.now_s = max(self.now_s, at)
        finally:
            self._pausing -= 1

    def _fail(self, what: str) -> None:
        self.failures.append(what)
        if not self._over:
            self._abandon()

    def _abandon(self) -> None:
        """End all tasks at their next step."""
        self._over = True
        for each in self._tasks:
            each.baton.release()
        self._main_done.set()

    def fork(self) -> int:
        """Stand in for `os.fork`; in the child the other threads have not come along."""
        self._pausing += 1  # while the library's hooks run, they are not known to be gone
        pid = os.fork()
        if pid == 0:
            self._tasks = [self.current()]
            faulthandler.dump_traceback_later(20, exit=True)
        self._pausing -= 1
        return pid

    def afterwards(self) -> bool:
        """True if the run is over, and this a finalizer that still finds something of it."""
        return (self._over or self._main_done.is_set()) and not threading.current_thread().name.startswith("rig-")

    def current(self) -> _Task:
        """Return the task that runs."""
        assert self._current is not None
        return self._current

    def wakes_at(self, name: str) -> float:
        """Return when a waiting thread of that name goes on by itself; now, when there is none."""
        times = [task.until for task in self._living() if task.name == name and task.until < _FOREVER]
        return min(times, default=self.now_s)

    # ---- lines ----

    def _trace(self, frame: FrameType, event: str, _arg: object) -> Any:
        name = frame.f_code.co_filename
        return self._line if any(part in name for part in _TRACED) else None

    def _line(self, _frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            self.switch()
        return self._line

    # ---- messages ----

    def subscribe(self, channel: bytes, inbox: _Inbox) -> None:
        """Subscribe to what is published there, from now on."""
        self._inboxes.setdefault(channel, []).append(inbox)

    def unsubscribe(self, inbox: _Inbox) -> None:
        """End the subscription."""
        for channel, inboxes in tuple(self._inboxes.items()):
            if inbox in inboxes:
                inboxes.remove(inbox)
            if not inboxes:
                del self._inboxes[channel]

    def _publish(self, channel: bytes, message: bytes) -> int:
        inboxes = self._inboxes.get(channel, [])
        for inbox in inboxes:
            inbox.sock.items.append([b"message", channel, message])
        return len(inboxes)

    # ---- in place of what blocks ----

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """The threads API works in this world."""
        import holdfast

        for name in holdfast.__all__:
            getattr(holdfast, name)  # what is imported lazily is not imported under the scheduler
        from holdfast._runtime import clock as clocks
        from holdfast._runtime import identity

        identity.here()  # what a process makes once is not made under the scheduler

        put: list[tuple[Any, str, Any]] = []

        def replace(module: Any, name: str, value: Any) -> None:
            put.append((module, name, getattr(module, name)))
            setattr(module, name, value)

        real = clocks.clock
        for name, module in tuple(sys.modules.items()):
            if not name.startswith("holdfast.") or name in _OUTSIDE:
                continue
            if getattr(module, "clock", None) is real:
                replace(module, "clock", self.clock)
            if name.startswith(("holdfast._drivers.", "holdfast._sync.", "holdfast._runtime.waits")):
                for each in ("threading", "selectors", "time", "queue", "os"):
                    if hasattr(module, each):
                        replace(module, each, getattr(self, each))
                if hasattr(module, "random"):
                    replace(module, "random", self.random_module)
                if name in (f"holdfast._drivers.{each}" for each in ("threads", "watchdog", "inboxes")):
                    replace(module, "socket", self.socket)
                if hasattr(module, "new_poll"):
                    replace(module, "new_poll", lambda: _Poll(self))
        replace(
            sys.modules["holdfast._sync.lifecycle"],
            "threads_topology",
            lambda _client: SingleTopology(cast("Any", self.node)),
        )
        # How far that has come is none of this world's, and would change its schedule.
        replace(sys.modules["holdfast._reports.reporter"].Reporter, "send", lambda _reporter, _event, *_details: None)
        enabled = gc.isenabled()
        gc.disable()  # a collection at a moment of its own would not come again
        try:
            yield
        finally:
            for module, name, value in reversed(put):
                setattr(module, name, value)
            if enabled:
                gc.enable()


def _passing(module: Any, **others: Any) -> Any:
    """The module, with others in the place of some of its names."""

    class Passing(SimpleNamespace):
        def __getattr__(self, name: str) -> Any:
            return getattr(module, name)

    return Passing(**others)


# ---------------------------------------------------------------------- threading


def _threading_for(world: World) -> Any:
    class Lock:
        _again = False

        def __init__(self) -> None:
            self._owner: _Task | None = None
            self._count = 0

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if world.afterwards():
                return True
            if world._over:
                raise _Over
            me = world.current()
            if self._again and self._owner is me:
                self._count += 1
                return True
            world.switch()
            while self._owner is not None:
                until = None if timeout < 0 else world.now_s + timeout
                if not blocking or not world.wait(lambda: self._owner is None, until, "a lock"):
                    return False
            self._owner, self._count = me, 1
            return True

        def release(self) -> None:
            if world.afterwards():
                return
            if self._owner is None:
                raise RuntimeError("release unlocked lock")
            self._count -= 1
            if not self._count:
                self._owner = None
                if not world._over:
                    world.switch()

        def locked(self) -> bool:
            return self._owner is not None

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    class RLock(Lock):
        _again = True

    class Condition:
        def __init__(self, lock: Any = None) -> None:
            self._lock = RLock() if lock is None else lock
            self._waiting: list[list[bool]] = []
            self.acquire, self.release = self._lock.acquire, self._lock.release

        def __enter__(self) -> bool:
            return bool(self._lock.__enter__())

        def __exit__(self, *args: object) -> None:
            self._lock.__exit__(*args)

        def wait(self, timeout: float | None = None) -> bool:
            told = [False]
            self._waiting.append(told)
            self._lock.release()
            try:
                until = None if timeout is None else world.now_s + timeout
                return world.wait(lambda: told[0], until, "a condition")
            finally:
                if told in self._waiting:
                    self._waiting.remove(told)
                self._lock.acquire()

        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            until = None if timeout is None else world.now_s + timeout
            while not (result := predicate()):
                left_s = None if until is None else until - world.now_s
                if left_s is not None and left_s <= 0:
                    break
                self.wait(left_s)
            return result

        def notify(self, n: int = 1) -> None:
            for told in self._waiting[:n]:
                told[0] = True
            del self._waiting[:n]

        def notify_all(self) -> None:
            self.notify(len(self._waiting))

    class Thread:
        _numbers = itertools.count(1)

        def __init__(
            self,
            group: None = None,
            target: Callable[..., object] | None = None,
            name: str | None = None,
            args: Any = (),
            kwargs: Any = None,
            *,
            daemon: bool | None = None,
        ) -> None:
            self.name = name or f"Thread-{next(self._numbers)}"
            self.daemon = daemon
            self._call = (target, args, kwargs or {})
            self._task: _Task | None = None

        @property
        def ident(self) -> int | None:
            return None if self._task is None else self._task.number + 1

        def start(self) -> None:
            self._task = world.spawn(self.run, self.name)
            threads[self._task.number] = self
            world.switch()

        def run(self) -> None:
            target, args, kwargs = self._call
            if target is not None:
                target(*args, **kwargs)

        def join(self, timeout: float | None = None) -> None:
            if self._task is None:
                raise RuntimeError("cannot join thread before it is started")
            world.join(self._task, timeout)

        def is_alive(self) -> bool:
            return self._task is not None and not self._task.done

    threads: dict[int, Any] = {}

    def current_thread() -> Any:
        task = world.current()
        if task.number not in threads:
            thread = threads[task.number] = Thread(name=task.name)
            thread._task = task
        return threads[task.number]

    def excepthook(told: Any) -> None:
        world._fail(f"reported in {told.thread.name}: {told.exc_type.__name__}: {told.exc_value}")

    return _passing(
        threading,
        Lock=Lock,
        RLock=RLock,
        Condition=Condition,
        Thread=Thread,
        current_thread=current_thread,
        get_ident=lambda: world.current().number + 1,
        excepthook=excepthook,
        ExceptHookArgs=lambda args: SimpleNamespace(
            exc_type=args[0], exc_value=args[1], exc_traceback=args[2], thread=args[3]
        ),
    )


class _Queue:
    """A `queue.SimpleQueue`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: list[Any] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._world.switch()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        until = None if timeout is None else self._world.now_s + timeout
        if not self._world.wait(lambda: bool(self._items), until, "a queue"):
            raise queue.Empty
        return self._items.pop(0)

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.pop(0)


# ---------------------------------------------------------------------- sockets


class _Socket:
    """An end that can be selected. What lies in `items` has arrived."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.items: list[Any] = []
        self.peer: _Socket | None = None
        self.closed = False
        self.number = len(world.sockets)
        world.sockets.append(self)

    def fileno(self) -> int:
        return -1 if self.closed else self.number

    def setblocking(self, _flag: bool) -> None:
        pass

    def send(self, data: bytes) -> int:
        if self.closed or self.peer is None or self.peer.closed:
            raise BrokenPipeError
        self.peer.items.append(data)
        self._world.switch()
        return len(data)

    def recv(self, _most: int) -> bytes:
        if self.closed:
            raise OSError("closed")
        data, self.items = self.items, []
        if not data:
            raise BlockingIOError
        return b"".join(data)

    def close(self) -> None:
        self.closed = True


def _pair(world: World) -> tuple[_Socket, _Socket]:
    one, two = _Socket(world), _Socket(world)
    one.peer, two.peer = two, one
    return one, two


class _Selector:
    def __init__(self, world: World) -> None:
        self._world = world
        self._keys: dict[Any, Any] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> None:
        if fileobj.closed:
            raise ValueError("closed")
        self._keys[fileobj] = SimpleNamespace(fileobj=fileobj, data=data)

    def unregister(self, fileobj: Any) -> None:
        del self._keys[fileobj]

    def _ready(self) -> list[Any]:
        return [(key, selectors.EVENT_READ) for each, key in self._keys.items() if each.items or each.closed]

    def select(self, timeout: float | None = None) -> list[Any]:
        until = None if timeout is None else self._world.now_s + timeout
        self._world.wait(lambda: bool(self._ready()), until, "a selector")
        return self._ready()

    def get_map(self) -> dict[Any, Any]:
        return self._keys

    def close(self) -> None:
        self._keys.clear()


class _Poll:
    """What `new_poll()` gives: for sockets of this world. Nodes without pipelines have no others."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._polled: list[_Socket] = []

    def register(self, fd: int, _events: int) -> None:
        self._polled.append(self._world.sockets[fd])

    def poll(self, wait_ms: float) -> list[tuple[int, int]]:
        def ready() -> list[_Socket]:
            return [each for each in self._polled if each.items or each.closed]

        self._world.wait(lambda: bool(ready()), self._world.now_s + wait_ms / 1000, "a poll")
        return [(each.number, select.POLLIN) for each in ready()]


# ---------------------------------------------------------------------- the server


class _Inbox:
    """A subscription."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sock = _Socket(world)

    def read_ready(self) -> list[Any]:
        if self.sock.closed:
            raise OSError("closed")
        items, self.sock.items = self.sock.items, []
        return items

    def close(self) -> None:
        self._world.unsubscribe(self)
        self.sock.closed = True

    abort = forget = close


class Node:
    """The one server, as the driver sees it. `lose`: how often a reply does not come."""

    pipelines = False

    def __init__(self, world: World) -> None:
        self._world = world
        self.name = "server"
        self.closed = False
        self.owed = 0
        self.slow = False
        self.connected = True
        self.lose = 0.0
        self._names = {script.sha.encode(): name for name, script in SCRIPTS.items()}

    def _carry_out(self, work: Callable[[], Any], request_timeout_s: float) -> Any:
        world = self._world
        if self.closed or world.afterwards():
            raise RequestFailed("closed", "the client is closed", self.name, maybe_executed=False, transient=False)
        world.switch(always=True)
        try:
            reply = work()
        except Refused as refused:
            reply = refusal(str(refused), self.name)
        if world.random.random() < self.lose:
            world.sleep(request_timeout_s)
            raise RequestFailed("silent", "no answer in time", self.name, maybe_executed=True, transient=True)
        world.sleep(world.random.choice((0.0, 0.0002, 0.001)))
        if isinstance(reply, RequestFailed):
            raise reply
        return reply

    def call(self, call: Any, on_wire: Any = None, asking: bool = False) -> Any:
        return self._carry_out(
            lambda: self._world.server.script(call.script, call.keys, call.args), call.request_timeout_s
        )

    def call_packed(self, packed: bytes, request_timeout_s: float, script: Any) -> Any:
        reader = hiredis.Reader()
        reader.feed(packed)
        words: list[Any] = reader.gets()
        count = int(words[2])
        keys, args = words[3 : 3 + count], words[3 + count :]
        return self._carry_out(lambda: self._world.server.script(self._names[words[1]], keys, args), request_timeout_s)

    def call_all(self, calls: Any, request_timeout_s: float) -> list[Any]:
        answers: list[Any] = []
        for call in calls:
            try:
                answers.append(self.call(call))
            except RequestFailed as failure:
                answers.append(failure)
        return answers

    def command(self, command: Any, asking: bool = False) -> Any:
        return self._carry_out(lambda: self._world.server.command(*command.args), command.request_timeout_s)

    def subscribe(self, channel: str, request_timeout_s: float) -> _Inbox:
        inbox = _Inbox(self._world)
        self._carry_out(lambda: self._world.subscribe(channel.encode(), inbox), request_timeout_s)
        return inbox

    def drop_idle(self) -> None:
        pass

    def idle(self) -> None:
        """Do nothing: no connection lies ready."""
        return

    def in_use(self) -> list[Any]:
        """Connections are made for each request here, and none can be cut off."""
        return []

    def close(self) -> None:
        self.closed = True

    def forget(self) -> None:
        pass
