"""Ending a block in the main thread as soon as its lease is lost. ::

    from holdfast.interrupting import interrupt_on_lost

    with locks.lock("orders:42") as lease, interrupt_on_lost(lease):
        ...

Theory: a signal is the only interruption that also ends a wait in the system, and that its receiver can refuse when it
comes too late. An exception that another thread sets (`PyThreadState_SetAsyncExc`) can do neither.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType, TracebackType

from holdfast._sync.lease import Lease, LeaseState
from holdfast._transport.greenlets import who_patched
from holdfast.errors import ConfigurationError, LeaseLost

__all__ = ["SIGNAL", "Interrupted", "interrupt_on_lost"]

#: A process without a handler ignores it, and hardly any program has one.
SIGNAL = signal.SIGURG


class Interrupted(LeaseLost):
    """The lease was lost, and its block interrupted. Way out: as for `LeaseLost`."""


class interrupt_on_lost:
    """A context manager: when `lease` is lost, `Interrupted` (a `LeaseLost`) is raised in the block.

    When to use: a script, a worker process or a command does one long thing under a lock in its main thread, and would
    rather be stopped anywhere than go on without it. (With asyncio, a lost lease cancels its block by itself.)

    It comes at any bytecode, and ends `time.sleep` and other waits in the system, as Ctrl-C does: within `finally`,
    and within libraries. Use it where KeyboardInterrupt would do no harm. It comes once, and never after the block.

    It does not promise to come at once (code in C that does not wait, as a long computation, is left to its end), nor
    that the block ends: what catches LeaseLost, or all exceptions, goes on. The end of the lease's own block raises
    LeaseLost in any case.

    Handles SIGURG from its first use on. Raises `ConfigurationError` where the program does so, outside of the main
    thread, under gevent or eventlet, and in an event loop: use `lease.on_lost` or `lease.ensure_held()` there.
    """

    def __init__(self, lease: Lease) -> None:
        if not isinstance(lease, Lease):
            raise ConfigurationError("lease", lease, "a lease of holdfast.Client; asyncio cancels its blocks itself")
        self._lease = lease

    def __enter__(self) -> None:
        where = who_patched() or (threading.current_thread() is not threading.main_thread() and "another thread")
        where = where or (asyncio._get_running_loop() is not None and "an event loop")
        if where:
            raise ConfigurationError("interrupt_on_lost", where, "the main thread; elsewhere use lease.on_lost(…)")
        handler = signal.getsignal(SIGNAL)
        if handler in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(SIGNAL, _interrupt)
        elif handler is not _interrupt:
            raise ConfigurationError("handler of SIGURG", handler, "none but that of holdfast")
        try:
            _blocks[id(self)] = self._lease
            self._lease.on_lost(self._send)
        except BaseException:
            _blocks.pop(id(self), None)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _blocks.pop(id(self), None)

    def _send(self, _: LeaseLost) -> None:
        main = threading.main_thread().ident
        if id(self) in _blocks and main is not None:
            signal.pthread_kill(main, SIGNAL)


#: The leases of blocks that can be interrupted. Changed in the main thread alone, each time in one step.
_blocks: dict[int, Lease] = {}


def _interrupt(number: int, frame: FrameType | None) -> None:
    for block, lease in tuple(_blocks.items()):
        if lease.state is LeaseState.LOST:
            del _blocks[block]
            raise Interrupted(lease.name, lease.lost.reason or "expired", lease._hold.label)
