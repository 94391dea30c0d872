"""Starting threads, safe in threads that an exception may strike at any moment.

Law: nothing is waited for, and no lock is taken: `Thread.start` waits until the thread runs, in code that a signal
handler's exception, or one of `PyThreadState_SetAsyncExc`, leaves half done.

Theory: a bare thread, which no handler interrupts, starts the one that is wanted.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable

#: What is raised when there are too many, or the interpreter ends.
CANNOT_START = (RuntimeError, MemoryError, OSError)


def start_thread(name: str, function: Callable[[], object], failed: Callable[[BaseException], object]) -> None:
    """Run it in a thread of that name. Where none can be started, `failed` is called, here or elsewhere."""
    if sys.is_finalizing():  # it would be started, and never run
        failed(RuntimeError("the interpreter ends"))
        return
    try:
        _thread.start_new_thread(_start, (name, function, failed))
    except CANNOT_START as error:
        failed(error)


def _start(name: str, function: Callable[[], object], failed: Callable[[BaseException], object]) -> None:
    try:
        threading.Thread(target=function, name=name, daemon=True).start()
    except CANNOT_START as error:
        failed(error)
