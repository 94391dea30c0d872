"""Says so when an operation does not end, and keeps the time of faults that come and go inside the process."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

__all__ = ["HUNG", "Watch", "stacks"]

#: Exit status of a process in which something hung.
HUNG = 97
_TICK_S = 0.05
#: What a look lasts longer than this, the process was stopped, or the machine was busy: that is not held against what
#: waits, s.
_STOPPED_S = 0.1


def stacks(first: int | None = None) -> str:
    """Format the stacks of all threads, `first` (an ident) before the others."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != first)
    own = threading.get_ident()
    parts = []
    for ident, frame in frames:
        if ident != own:
            lines = [
                f"    {summary.filename.rpartition('holdfast/')[2]}:{summary.lineno} {summary.name}"
                for summary in traceback.extract_stack(frame)[-10:]
                if not summary.filename.endswith(("/threading.py", "runpy>"))
            ]
            parts.append(f"  thread {names.get(ident, '?')}:\n" + "\n".join(lines))
    if "gevent" in sys.modules:
        parts += importlib.import_module("gevent.util").format_run_info()
    return "\n".join(parts)


class Watch:
    """A thread that knows what is under way. What lasts longer than its bound ends the process, with all stacks."""

    def __init__(self, hung: Callable[[str, str], None]) -> None:
        self._hung = hung
        self._places: dict[object, tuple[str, int, float]] = {}
        self._each: list[Callable[[float], None]] = []
        self._stopping = False
        #: Seconds of this process, without those in which it did not run though it had something to do.
        self.now_s = 0.0
        self._thread = threading.Thread(target=self._main, name="rig-watch", daemon=True)
        self._thread.start()

    def begin(self, key: object, what: str, bound_s: float) -> None:
        """`what` begins in this thread. No lock: signal handlers and children of a fork come by here."""
        self._places[key] = (what, threading.get_ident(), self.now_s + bound_s)

    def end(self, key: object) -> None:
        """Stop watching what has ended."""
        self._places.pop(key, None)

    def each(self, function: Callable[[float], None]) -> None:
        """Call it at every tick, with the time."""
        self._each.append(function)

    def stop(self) -> None:
        """Stop ticking."""
        self._stopping = True
        self._thread.join()

    def _main(self) -> None:
        last = time.monotonic()
        while not self._stopping:
            time.sleep(_TICK_S)
            now = time.monotonic()
            self.now_s += min(now - last, _STOPPED_S)
            last = now
            for function in self._each:
                function(self.now_s)
            for what, ident, until_s in tuple(self._places.values()):
                if self.now_s > until_s:
                    self._hung(f"{what} hangs", stacks(ident))
                    os._exit(HUNG)
