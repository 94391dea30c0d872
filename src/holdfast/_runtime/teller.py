"""Calls users' functions: the callbacks for a loss.

Laws: the finder of a loss waits for none of them, and is hurt by none of them; that no thread can be started is no
reason to leave it untold.

Theory: each has a thread of its own, so that one that hangs holds up no other. Where none can be started (the limits of
a container, the interpreter's end), they take turns on a spare thread, which was started when the first one was
announced; where there is none either, they wait until one can be started, which is tried again and again.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast._runtime.starting import start_thread
from holdfast._runtime.waits import Flag, ring, silent_bell, wait

_NAME = "holdfast-on-lost"


def report() -> None:
    """A bug, shown as any unhandled exception of a thread; the thread goes on."""
    try:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
    except Exception:
        pass  # a hook of the program's; nothing depends on it


def call_user(function: Callable[..., object], *args: Any) -> None:
    """Call a user's function in a thread of ours, which what it raises does not end."""
    try:
        function(*args)
    except SystemExit:
        pass  # as in any thread
    except BaseException:
        report()


class Teller:
    """The callbacks of one client. `later(act)` has that called after a while, `by_engine(act)` by the engine."""

    def __init__(
        self, later: Callable[[Callable[[], None]], object], by_engine: Callable[[Callable[[], None]], object]
    ) -> None:
        self._later = later
        self.by_engine = by_engine
        #: Calls for which no thread could be started, and what wakes the spare one.
        self._waiting: deque[Callable[[], object]] = deque()
        self._bell = silent_bell()
        self._spare: threading.Thread | None = None
        self._untold: set[Callable[[], object]] = set()
        self._stopped = False

    def flag(self) -> Flag:
        """Make what threads wait for and any thread sets."""
        return Flag()

    def prepare(self) -> None:
        """There will be something to tell: have a thread for it."""
        spare = self._spare
        if not (self._stopped or (spare is not None and spare.is_alive())):
            start_thread(_NAME, self._serve, self._has_no_spare)

    def tell(self, function: Callable[[Any], object], argument: Any) -> None:
        """Call it soon. Never raises."""
        call = partial(function, argument)
        self._untold.add(call)
        start_thread(_NAME, partial(self._call, call), partial(self._wait, call))

    def _wait(self, call: Callable[[], object], _error: BaseException) -> None:
        self._waiting.append(call)
        ring(self._bell)
        self.prepare()

    def _has_no_spare(self, _error: BaseException) -> None:
        if self._waiting:
            self._later(self.prepare)

    def has_told(self, _record: object) -> bool:
        """True if all have returned."""
        return not self._untold

    def stop(self) -> None:
        """End the spare thread, when it has told what it has to."""
        self._stopped = True
        ring(self._bell)

    def _call(self, call: Callable[[], object]) -> None:
        call_user(call)
        self._untold.discard(call)

    def _serve(self) -> None:
        spare = self._spare
        if spare is not None and spare.is_alive():
            return  # two were started
        self._spare = threading.current_thread()
        while wait(self._bell, lambda: bool(self._waiting) or self._stopped, None):
            try:
                call = self._waiting.popleft()
            except IndexError:
                if self._stopped:
                    return
            else:
                self._call(call)
