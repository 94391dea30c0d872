"""Functions that run at the end of a process, whichever way it ends that lets Python run anything.

`atexit` alone misses the children of `multiprocessing` that were forked (by "fork" or "forkserver"): they end with
`os._exit`, after finalizers of their own. It misses functions that are registered while it calls others: `lazily` has
those called. And it misses what is made by handlers that it calls after ours, or that import us: what is left then is
closed when the modules are.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

_functions: list[Callable[[], object]] = []
_at_last: list[Callable[[], object]] = []
_registered = False


def register(function: Callable[[], object], *, at_last: bool = False) -> None:
    """Call `function` when the process ends, perhaps twice; the last registered comes first.

    `at_last`: once more when modules go. Then it can rely on no name of one.
    """
    _functions.append(function)
    if at_last:
        _at_last.append(function)
    atexit.register(function)


def at_end() -> None:
    """Call them all."""
    for function in reversed(_functions):
        function()


def main_thread_has_ended() -> bool:
    """True once the process is about to end.

    `is_alive` of Python before 3.13 takes a thread for ended, and for good, when a signal handler raises in it.
    """
    main: Any = threading.main_thread()
    return main._is_stopped if hasattr(main, "_is_stopped") else not main.is_alive()


class _Last:
    """Calls those once more when this module goes."""

    def __init__(self) -> None:
        self.functions = _at_last

    def __del__(self) -> None:
        for function in self.functions:
            try:
                function()
            except Exception:  # what it needs is gone
                pass


def _before_fork() -> None:
    """Children are told when they are made, since multiprocessing forgets what was registered before that."""
    global _registered
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _registered:
        _registered = True
        util.register_after_fork(_in_child, lambda in_child: in_child())


def _in_child() -> None:
    util = sys.modules["multiprocessing.util"]
    util.Finalize(None, _end_of_child, exitpriority=-100)  # after those that have a reason to come first


def _end_of_child() -> None:
    # Threads that are no daemons work to their end, as in any process. What multiprocessing does next, a step earlier.
    end_of_threads = getattr(threading, "_shutdown", None)
    if end_of_threads is not None:
        end_of_threads()
    at_end()


os.register_at_fork(before=_before_fork)
_before_fork()
_process = sys.modules.get("multiprocessing.process")
if _process is not None and _process.parent_process() is not None:
    _in_child()  # first imported in a child
_last = _Last()
