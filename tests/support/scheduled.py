"""The threads of a client under a schedule that a seed decides: every interleaving can be had, and had again.

    world = World(seed)
    with world.installed():
        world.run(scenario)         # scenario(world) is the first thread; world.spawn(f) starts others

Theory: all threads are real, and one runs at a time. Who runs may hand over at every *line* of the traced modules (in
some worlds at every bytecode), and where it waits: for a lock, an event, a thread's end, a selector, a socket. What
avoids locks, so that signal handlers may use it, races between its lines; a scheduler that switches at locks alone
would see nothing of that. In some worlds a thread that was switched away goes on only when no other one can, which
shows what takes one long pause at the wrong place. The engine's thread is one of those threads. What blocks is replaced
by what asks the scheduler; time is virtual, and moves when no one can run. At the other end of the sockets is the
simulator's server, which runs the scripts that ship; what it says comes a little later. No thread that can run, and
none that waits for a time: a deadlock.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import faulthandler
import gc
import heapq
import importlib
import itertools
import math
import os
import pkgutil
import random
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from opcode import opmap
from types import FrameType, SimpleNamespace
from typing import Any

import hiredis

import holdfast
from holdfast._engine import loop
from holdfast._engine.dial import CONNECT_TIMEOUT_S
from holdfast._engine.server import Server as EnginesServer
from holdfast._engine.server import Topology
from holdfast._front import base
from holdfast._lua import SCRIPTS
from sim.server import Refused, Server

__all__ = ["Deadlock", "Interrupted", "World"]

#: What tells loggers and observers belongs to the process, and was made before any world: it stays outside.
_OUTSIDE = frozenset({"holdfast._reports.reporter", "holdfast._reports.log"})
#: What is due within this comes at the same moment, s.
_TOGETHER_S = 1e-5
#: How long a look at the clock takes, s.
_LOOK_S = 1e-9
#: A schedule of more steps than this goes round in circles.
_STEPS_MAX = 400_000
#: Where threads may be switched: in all worlds, and in those that are dense.
_TRACED = (
    *(f"/holdfast/_engine/{name}.py" for name in ("client", "dial", "link", "loop", "operation", "requests", "server")),
    *("/holdfast/_front/", "/holdfast/_runtime/waits.py", "/holdfast/_sync/", "/holdfast/_core/record.py"),
)
_TRACED_DENSELY = (
    *("/holdfast/_async/", "/holdfast/_api/acquirable.py", "/holdfast/_api/session.py"),
    *("/holdfast/_core/agent/", "/holdfast/_core/schedule.py", "/holdfast/_core/tenure.py"),
    *(f"/holdfast/_core/{name}.py" for name in ("early", "exclusive", "holder_notices", "lease_cache", "mutex")),
)
#: Where threads meet without a lock, and may be switched more often than elsewhere: as if a line there were many.
_FOCUSES = ("/_core/tenure.py", "/_core/tenure.py", "/_core/lease_cache.py", "/_core/schedule.py", "/_engine/link.py")
_FOCUS_WEIGHT = 100
#: Modules that get what belongs to the world in place of what blocks.
_REPLACED = (
    *("holdfast._engine.", "holdfast._front.", "holdfast._sync."),
    *("holdfast._runtime.waits", "holdfast._runtime.starting", "holdfast._runtime.teller"),
)
#: What is imported before a world begins.
_IMPORTED = tuple(f"holdfast.{name}." for name in ("_api", "_async", "_core", "_front", "_sync"))
#: The numbers of descriptors begin here: no real one is meant by them.
_FIRST_FD = 1_000_000
_SHAS = {script.sha.encode(): name for name, script in SCRIPTS.items()}
_HELLO = b"%1\r\n$5\r\nproto\r\n:3\r\n"
_FOREVER = float("inf")


def _begins_try(frame: FrameType) -> bool:
    """True at the NOP of a `try`, which no `except` is told of: only a trace function can raise there."""
    return frame.f_code.co_code[frame.f_lasti] == opmap["NOP"]


@cache
def _is_traced(file: str, dense: bool) -> bool:
    return any(part in file for part in (*_TRACED, *(_TRACED_DENSELY if dense else ())))


@cache
def _import_all() -> None:
    """Import what would be imported lazily, under the scheduler, by one thread or another."""
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if module.name.startswith(_IMPORTED) and "trio" not in module.name:
            importlib.import_module(module.name)


class Deadlock(AssertionError):
    """No one can ever run again; or they run forever."""


class _Over(BaseException):
    """Ends the threads of a run that has failed."""


class Interrupted(BaseException):
    """Comes up in a thread between any two lines, as KeyboardInterrupt does."""


class _Task:
    """A thread of the run."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.ready: Callable[[], bool] | None = None
        self.until = _FOREVER
        self.waits_for = ""
        self.done = False
        self.ident = 0
        #: Until that step it goes on only when no other one can; after that many it is interrupted; since then, it is
        #: not traced.
        self.stalled_until = 0
        self.interrupt_at: int | None = None
        self.untraced = False


class World:
    """One run. `eager`: how often threads are switched between lines; drawn from the seed when it is None."""

    def __init__(self, seed: int, eager: float | None = None) -> None:
        self.random = random.Random(seed)
        self.eager = self.random.choice((0.003, 0.02, 0.1, 0.3)) if eager is None else eager
        #: Whether threads are switched in more files, and between bytecodes; the file, if any, of which a line counts
        #: as many; how often one that was switched away is stalled; what is due within that comes at one moment, s.
        self.dense = self.random.random() < 0.4
        self.fine = self.dense and self.random.random() < 0.3
        self.focus = self.random.choice(_FOCUSES) if self.dense and self.random.random() < 0.6 else None
        self.stall = self.random.choice((0.0, 0.0, 0.3))
        self.together_s = _TOGETHER_S if self.dense else _TOGETHER_S / 10
        if self.fine:
            self.eager /= 5
        if self.focus is not None:
            self.eager = min(self.eager, 0.02)
        self._steps_max = _STEPS_MAX * (10 if self.fine else 1)
        self._left = self._steps_left()
        #: Called whenever another thread goes on; may raise AssertionError.
        self.holds_always: Callable[[], None] = lambda: None
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
        self.server.numsub = lambda channel: len(self._listening.get(channel, ()))
        self._listening: dict[bytes, list[_Socket]] = {}
        self._engines: dict[int, loop.Engine] = {}
        #: When what was sent arrives.
        self._arrivals: list[float] = []
        #: By their descriptors, sockets and bells.
        self.things: dict[int, Any] = {}
        #: How often a server's reply does not come, nor any later one on that connection; or comes late, as all behind
        #: it; how often a connection ends in place of a reply; how often a piece is cut.
        self.lose = self.late = self.end = 0.0
        self.cut = self.random.choice((0.0, 0.1))
        self.threading = _threading_for(self)
        self.random_module = _passing(random, Random=lambda *_: random.Random(f"{seed}-jitter"))
        self._identities = random.Random(f"{seed}-identities")
        self.os = _passing(
            os,
            urandom=self._identities.randbytes,
            pipe=lambda: (_Bell(self).number,) * 2,
            set_blocking=lambda *_: None,
            write=lambda fd, _: self.things[fd].ring(),
            read=lambda fd, _: self.things[fd].silence(),
            close=lambda fd: self.things[fd].close(),
        )
        self.time = _passing(time, sleep=self.sleep, monotonic=self.clock, time=self.clock)
        self.replacements = {
            "threading": self.threading,
            "time": self.time,
            "os": self.os,
            "posix": self.os,
            "random": self.random_module,
            "select": _passing(select, epoll=lambda: _Epoll(self), poll=lambda: _Poll(self)),
            "_thread": _passing(_thread, start_new_thread=lambda function, args: self.spawn(lambda: function(*args))),
            "get_ident": self.threading.get_ident,
        }

    def clock(self) -> float:
        """The time of this world, s. Each look takes some: else a timer may be due again and again in no time."""
        self.now_s += _LOOK_S
        return self.now_s

    def server_ms(self) -> int:
        """The same on the server, ms."""
        return int(self.now_s * 1000) + 1_700_000_000_000

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
        try:
            self._unwound(time.monotonic() + 10)
            for task in self._tasks:
                assert task.done or self._over, f"{task.name} lives on"
        except AssertionError as error:
            self.failures.append(str(error))
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
        if self._over:
            self._pass_to(task)
        return task

    def _pass_to(self, task: _Task) -> None:
        with contextlib.suppress(RuntimeError):  # when all tasks are ended, it may have the baton
            task.baton.release()

    def _main(self, task: _Task, function: Callable[[], object]) -> None:
        task.baton.acquire()
        task.ident = task.number + 1
        try:
            if not self._over:
                sys.settrace(self._trace)
                try:
                    with contextlib.suppress(Interrupted):
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

    def switch(self, always: bool = False, weight: int = 1) -> None:
        """Perhaps someone else goes on here, as after that many steps."""
        task = self._current
        if task is None or self._pausing or task.done or self.afterwards():
            return
        if self._over:
            raise _Over
        self.steps += 1
        self._left -= weight
        if task.untraced:
            self._trace_again(task)
        if always or self._left <= 0:
            if self.steps > self._steps_max:
                self._fail(f"more than {self._steps_max} steps")
                raise _Over
            self._left = self._steps_left()
            if self.random.random() < self.stall:
                task.stalled_until = self.steps + self._steps_max // 20  # others may spin until it goes on
            self._next(task)

    def _steps_left(self) -> int:
        """Draw how many steps a thread makes until another one may go on."""
        return 1 + int(math.log(1.0 - self.random.random()) / math.log(1.0 - self.eager))

    def interrupt(self, task: _Task, steps: int) -> None:
        """Raise `Interrupted` in a thread, when it has made that many steps."""
        task.interrupt_at = steps

    def _trace_again(self, task: _Task) -> None:
        """Python traces a thread no more where its trace function has raised."""
        task.untraced = False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if _is_traced(frame.f_code.co_filename, self.dense):
                frame.f_trace = self._line
            frame = frame.f_back
        sys.settrace(self._trace)

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
        self._pausing += 1
        try:
            self.holds_always()
        except AssertionError as error:
            if not self._over:
                self._fail(str(error))
            raise _Over from None
        finally:
            self._pausing -= 1
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
        self._pass_to(other)
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
                    chosen = self.random.choice([each for each in able if each.stalled_until <= self.steps] or able)
                    chosen.stalled_until = 0
                    return chosen
                at = min((each.until for each in living), default=_FOREVER)
                while self._arrivals and self._arrivals[0] <= self.now_s:
                    heapq.heappop(self._arrivals)
                if self._arrivals:
                    at = min(at, self._arrivals[0])
                if at == _FOREVER:
                    return None
                self.now_s = max(self.now_s, at + self.together_s)
        finally:
            self._pausing -= 1

    def _fail(self, what: str) -> None:
        self.failures.append(what)
        if not self._over:
            self._abandon()

    def _abandon(self) -> None:
        """End all tasks at their next step."""
        self._over = True
        for engine in self._engines.values():
            engine._clients.clear()  # else its loop would go on, whatever is raised in it
        for each in self._tasks:
            self._pass_to(each)
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
        if not _is_traced(frame.f_code.co_filename, self.dense):
            return None
        if self.fine:
            frame.f_trace = self._line  # Python 3.13 looks at it when told of opcodes
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._line

    def _line(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line" or event == "opcode":
            is_focus = self.focus is not None and frame.f_code.co_filename.endswith(self.focus)
            self.switch(weight=_FOCUS_WEIGHT if is_focus else 1)
            task = self._current
            if task is not None and task.interrupt_at is not None:
                task.interrupt_at -= 1
                if task.interrupt_at < 0 and not (self._pausing or self._over or _begins_try(frame)):
                    task.interrupt_at, task.untraced = None, True
                    raise Interrupted
        return self._line

    def run_loop(self, main: Callable[[], Any]) -> Any:
        """Run a coroutine function in an event loop of its own, in the current thread."""
        with asyncio.Runner(loop_factory=lambda: _Loop(self)) as runner:
            return runner.run(main())

    # ---- the server ----

    def connection(self) -> _Connection:
        """Connect to the server, as a client library does."""
        return _Connection(_Socket(self))

    def arrives(self, at_s: float) -> None:
        """Have something happen then."""
        heapq.heappush(self._arrivals, at_s)

    def answer(self, words: list[bytes], sock: _Socket) -> bytes:
        """Carry out a command."""
        verb = words[0].upper()
        if verb == b"HELLO":
            return _HELLO
        if verb == b"SUBSCRIBE":
            self._listening.setdefault(words[1], []).append(sock)
            return b">3\r\n" + _resp(b"subscribe") + _resp(words[1]) + _resp(1)
        try:
            if verb in (b"EVALSHA", b"EVAL"):
                count = int(words[2])
                return _resp(self.server.script(_SHAS[words[1]], words[3 : 3 + count], words[3 + count :]))
            return _resp(self.server.command(verb.decode(), *words[1:]))
        except Refused as refused:
            return b"-%b\r\n" % str(refused).encode()

    def unsubscribe(self, sock: _Socket) -> None:
        """End its subscriptions."""
        for channel, listening in tuple(self._listening.items()):
            if sock in listening:
                listening.remove(sock)
            if not listening:
                del self._listening[channel]

    def _publish(self, channel: bytes, message: bytes) -> int:
        listening = self._listening.get(channel, [])
        for sock in listening:
            sock.say(b">3\r\n" + _resp(b"message") + _resp(channel) + _resp(message))
        return len(listening)

    # ---- in place of what blocks ----

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """The threads API works in this world."""
        _import_all()
        from holdfast._runtime import clock as clocks
        from holdfast._runtime import identity

        identity.here()  # what a process makes once is not made under the scheduler

        put: list[tuple[Any, str, Any]] = []

        def replace(module: Any, name: str, value: Any) -> None:
            put.append((module, name, getattr(module, name)))
            setattr(module, name, value)

        real, importing = clocks.clock, self.threading.ImportLock()
        for name, module in tuple(sys.modules.items()):
            if not name.startswith("holdfast.") or name in _OUTSIDE:
                continue
            if hasattr(module, "importing"):
                replace(module, "importing", importing)
            if getattr(module, "clock", None) is real:
                replace(module, "clock", self.clock)
            if name.startswith(_REPLACED):
                for each, value in self.replacements.items():
                    if hasattr(module, each):
                        replace(module, each, value)
        replace(loop, "_engines", self._engines)
        replace(
            sys.modules["holdfast._api.session"],
            "topology_of",
            lambda *_: Topology(EnginesServer(loop.engine(), "server", self.connection)),
        )
        # How far that has come is none of this world's, and would change its schedule.
        replace(sys.modules["holdfast._reports.reporter"].Reporter, "send", lambda _reporter, _event, *_details: None)
        enabled = gc.isenabled()
        gc.disable()  # a collection at a moment of its own would not come again
        try:
            yield
        finally:
            self._forget()
            for module, name, value in reversed(put):
                setattr(module, name, value)
            if enabled:
                gc.enable()

    def _forget(self) -> None:
        """Have what is left of this world do nothing in the real one, where its sockets are none."""
        for engine in self._engines.values():
            engine.forget_all()
        for front in tuple(base._fronts):
            if front.engine in self._engines.values():
                front.ended = True


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
        _switches = True

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
            if self._switches:
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
                if self._switches and not world._over:
                    world.switch()

        def locked(self) -> bool:
            return self._owner is not None

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    class RLock(Lock):
        _again = True

    class ImportLock(RLock):
        _switches = False  # what is imported once is not imported again, and a schedule would not come again

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
        if told.exc_type is not _Over:
            world._fail(f"reported in {told.thread.name}: {told.exc_type.__name__}: {told.exc_value}")

    return _passing(
        threading,
        Lock=Lock,
        RLock=RLock,
        ImportLock=ImportLock,
        Condition=Condition,
        Thread=Thread,
        current_thread=current_thread,
        get_ident=lambda: world.current().number + 1,
        excepthook=excepthook,
        ExceptHookArgs=lambda args: SimpleNamespace(
            exc_type=args[0], exc_value=args[1], exc_traceback=args[2], thread=args[3]
        ),
    )


# ---------------------------------------------------------------------- sockets


def _resp(reply: Any) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, list | tuple):
        return b"*%d\r\n%b" % (len(reply), b"".join(map(_resp, reply)))
    data = reply.encode() if isinstance(reply, str) else bytes(reply)
    return b"$%d\r\n%b\r\n" % (len(data), data)


class _Thing:
    """What has a descriptor."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.closed = False
        self.number = _FIRST_FD + len(world.things)
        world.things[self.number] = self

    def ready(self) -> bool:
        """True if it can be read."""
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


class _Bell(_Thing):
    """Both ends of an `os.pipe`."""

    _rung = False

    def ready(self) -> bool:
        return self._rung

    def ring(self) -> None:
        if self.closed:
            raise OSError(9, "closed")
        self._rung = True
        self._world.switch()

    def silence(self) -> None:
        self._rung = False


class _Socket(_Thing):
    """The client's end. What is sent is carried out at once; what is said comes a little later, in order."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._parser = hiredis.Reader()
        self._coming: deque[tuple[float, bytes]] = deque()
        self._blocks = True
        self._mute = self._ended = False
        self._late_s = 0.0

    def dup(self) -> _Twin:
        return _Twin(self)

    def shutdown(self, _how: int) -> None:
        self._ended = True
        self._world.switch()

    def fileno(self) -> int:
        return -1 if self.closed else self.number

    def setblocking(self, flag: bool) -> None:
        self._blocks = flag

    def ready(self) -> bool:
        return self._ended or (bool(self._coming) and self._coming[0][0] <= self._world.now_s)

    def say(self, data: bytes) -> None:
        """Have it arrive."""
        world = self._world
        if not self._mute:
            at_s = world.now_s + world.random.choice((0.0, 0.0002, 0.001)) + self._late_s
            if self._coming:
                at_s = max(at_s, self._coming[-1][0])
            self._coming.append((at_s, data))
            world.arrives(at_s)

    def send(self, data: bytes) -> int:
        world = self._world
        world.switch(always=True)
        if self.closed or self._ended:
            raise OSError(32 if self._ended else 9, "closed")
        if not self._blocks and world.random.random() < world.cut:
            data = data[: world.random.randrange(1, len(data) + 1)]
        self._parser.feed(data)
        while (words := self._parser.gets()) is not False:
            answer = world.answer(words, self)
            self._mute = self._mute or world.random.random() < world.lose
            self._late_s = world.random.choice((0.1, 0.6, 1.1)) if world.random.random() < world.late else 0.0
            if world.random.random() < world.end:
                self._ended = self._mute = True
            self.say(answer)
        world.switch()
        return len(data)

    sendall = send

    def recv(self, _most: int) -> bytes:
        if self._blocks and not self._world.wait(self.ready, self._world.now_s + CONNECT_TIMEOUT_S, "bytes"):
            raise TimeoutError
        if self.closed:
            raise OSError(9, "closed")
        data = b""
        while self._coming and self.ready():
            data += self._coming.popleft()[1]
        if not data and not self._ended:
            raise BlockingIOError
        return data

    def close(self) -> None:
        self._world.unsubscribe(self)
        super().close()


class _Twin(_Thing):
    """Another descriptor of a socket, by which an event loop watches it."""

    def __init__(self, sock: _Socket) -> None:
        super().__init__(sock._world)
        self.ready = sock.ready  # type: ignore[method-assign]

    def fileno(self) -> int:
        return -1 if self.closed else self.number


class _Loop(asyncio.BaseEventLoop):
    """An event loop in the time of the world."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._woken = False
        self._readers: dict[int, Callable[[], object]] = {}
        self._selector = self

    def time(self) -> float:
        return self._world.now_s

    def select(self, timeout_s: float | None) -> list[Callable[[], object]]:
        world = self._world
        until = None if timeout_s is None else world.now_s + max(0.0, timeout_s)
        world.wait(lambda: self._woken or bool(self._found()), until, "the event loop's selector")
        self._woken = False
        return self._found()

    def _found(self) -> list[Callable[[], object]]:
        return [call for fd, call in self._readers.items() if self._world.things[fd].ready()]

    def _process_events(self, found: list[Callable[[], object]]) -> None:
        for call in found:
            self.call_soon(call)

    def _write_to_self(self) -> None:
        self._woken = True
        self._world.switch()

    def add_reader(self, fd: Any, callback: Callable[..., Any], *_: Any) -> None:  # type: ignore[override]
        self._readers[fd.fileno()] = callback

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd.fileno(), None) is not None


class _Connection:
    """As that of a client library."""

    def __init__(self, sock: _Socket) -> None:
        self._sock: _Socket | None = sock

    def connect(self) -> None:
        pass

    def disconnect(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


class _Epoll:
    """What `select.epoll` makes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._masks: dict[int, int] = {}

    def register(self, fd: int, mask: int) -> None:
        self._masks[fd] = mask

    def modify(self, fd: int, mask: int) -> None:
        if fd not in self._masks:
            raise OSError(2, "not watched")
        self._masks[fd] = mask
        self._world.switch()

    def unregister(self, fd: int) -> None:
        if self._masks.pop(fd, None) is None:
            raise OSError(2, "not watched")

    def _ready(self) -> list[tuple[int, int]]:
        found = []
        for fd, mask in self._masks.items():
            thing = self._world.things[fd]
            can = 0 if thing.closed else (loop.READ if thing.ready() else 0) | loop.WRITE
            if mask & can:
                found.append((fd, mask & can))
        return found

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        self._world.wait(lambda: bool(self._ready()), self._world.now_s + timeout_s, "the engine's selector")
        return self._ready()

    def close(self) -> None:
        self._masks.clear()


class _Poll:
    """What `select.poll` makes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._polled: list[_Socket] = []

    def register(self, fd: int, _events: int) -> None:
        self._polled.append(self._world.things[fd])

    def poll(self, wait_ms: float) -> list[tuple[int, int]]:
        def ready() -> list[_Socket]:
            return [each for each in self._polled if each.closed or each.ready()]

        self._world.wait(lambda: bool(ready()), self._world.now_s + wait_ms / 1000, "a poll")
        return [(each.number, select.POLLIN) for each in ready()]
