"""Interrupt a block in the main thread as soon as its lease is lost. ::

    from holdfast.interrupting import interrupt_on_lost

    with locks.lock("orders:42") as lease, interrupt_on_lost(lease):
        ...

Theory: a signal is the only interruption that also ends a wait in the system, and that its receiver can refuse when it
comes too late. An exception that another thread sets (`PyThreadState_SetAsyncExc`) can do neither.
"""

from __future__ import annotations

import signal
import threading
from sys import modules
from types import FrameType, TracebackType

from holdfast._runtime.greenlets import who_patched
from holdfast._sync.lease import Lease, LeaseState
from holdfast.errors import ConfigurationError, LeaseLost

__all__ = ["SIGNAL", "Interrupted", "interrupt_on_lost"]

#: A process without a handler ignores it, and hardly any program has one.
SIGNAL = signal.SIGURG


class Interrupted(LeaseLost):
    """The lease was lost, and its block was interrupted. Handle it like `LeaseLost`."""


class interrupt_on_lost:
    """Raise `Interrupted` (a `LeaseLost`) in the block when `lease` is lost; a context manager.

    Use it in a script, a worker process or a command that does one long task under a lock in its main thread, and
    should be stopped anywhere rather than continue without the lock. (With asyncio, a lost lease cancels the block.)

    Like Ctrl-C, the exception comes at any bytecode, even within `finally` and libraries, and interrupts `time.sleep`
    and other blocking system calls. Use it where KeyboardInterrupt would do no harm. It comes at most once, and never
    after the block.

    A long computation in C is not interrupted, and code that catches LeaseLost, or all exceptions, continues. The end
    of the lease's own block raises LeaseLost in any case.

    Handles SIGURG from its first use. Raises `ConfigurationError` if the program handles SIGURG itself, outside the
    main thread, under gevent or eventlet, and in an event loop: use `lease.on_lost` or `lease.ensure_held()` there.
    """

    def __init__(self, lease: Lease) -> None:
        if not isinstance(lease, Lease):
            raise ConfigurationError("lease", lease, "a lease of holdfast.Client; asyncio cancels its blocks itself")
        self._lease = lease

    def __enter__(self) -> None:
        where = who_patched() or (threading.current_thread() is not threading.main_thread() and "another thread")
        running_loop = getattr(modules.get("asyncio"), "_get_running_loop", None)  # another thread may import it now
        where = where or (running_loop is not None and running_loop() is not None and "an event loop")
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
            raise Interrupted(lease.name, lease.lost.reason or "expired", lease._record.label)
