"""Imports that wait until they are needed.

Laws: no fork comes in the middle of one: the child would wait forever for the thread that imports. Nor does a signal
handler, which would find what it needs half made, or raise, and leave CPython's lock of imports held.

Theory: the main thread, where handlers run, has another one import, and waits for it. So does a handler meanwhile. But
where it is itself in the middle of an import, the other one might wait for that one.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import Any

from holdfast._runtime.starting import start_thread

#: The main thread waits no longer than this, s: threads that are started do not run everywhere (uWSGI).
_WAIT_S = 1.0

#: Held around such an import. Reentrant: one may lead to another.
importing = threading.RLock()


def lazily(module: str) -> Any:
    """The module of that name."""
    found = sys.modules.get(module)
    if found is None or getattr(found.__spec__, "_initializing", False):  # as Python looks whether one is half made
        if not (_may_be_interrupted() and _elsewhere(module)):
            with importing:
                import_module(module)
        found = import_module(module)
    return found


def _may_be_interrupted() -> bool:
    """True if a handler may run in this thread, which is not amid an import."""
    if "signal" not in sys.modules or threading.get_ident() != threading.main_thread().ident:
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is None


def _elsewhere(module: str) -> bool:
    """Have a thread import it; False where none can be started."""
    bell, failed = threading.Lock(), list[BaseException]()
    bell.acquire()

    def cannot(error: BaseException) -> None:
        failed.append(error)
        bell.release()

    def run() -> None:
        with importing:
            with suppress(Exception):  # raised again where it is needed
                import_module(module)
            bell.release()  # before a fork can come, whose child would wait

    start_thread("holdfast-import", run, cannot)
    bell.acquire(True, _WAIT_S)
    return not failed


def later(module: str, *names: str) -> list[Callable[..., Any]]:
    """Return what the module has by these names, to be called: a call imports the module where that was not done."""
    return [lambda *args, _name=name, **options: getattr(lazily(module), _name)(*args, **options) for name in names]


def _in_child() -> None:
    with suppress(RuntimeError):  # uWSGI forks without a word before
        importing.release()


def _at_exit() -> None:
    """Call what was registered for the end of the process by imports as late as in a handler of `atexit`."""
    hooks = sys.modules.get("holdfast._runtime.exit_hooks")
    if hooks is not None:
        hooks.at_end()


atexit.register(_at_exit)
os.register_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=_in_child)
