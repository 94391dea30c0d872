"""Asking for a lease in a thread of its own, so that the main one can mind the signals meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.cli.report import say
from holdfast.cli.signals import ENDING, Signals

if TYPE_CHECKING:
    from holdfast import Cancel, Lease

__all__ = ["Asked"]

#: After a signal, the time for an acquire that is under way to take itself back, s.
_TAKE_BACK_S = 2.0
#: When it is said first what is waited for, and when again, s.
_FIRST_SAID_S, _SAID_AGAIN_S = 1.0, 30.0


class Asked:
    """`acquire(cancel)` under way."""

    def __init__(self, acquire: Callable[[Cancel], Lease], signals: Signals) -> None:
        from holdfast import Cancel

        self.lease: Lease | None = None
        self.error: BaseException | None = None
        self._acquire = acquire
        self._cancel = Cancel()
        self._over = threading.Event()
        self._signals = signals
        self._thread = threading.Thread(target=self._run, name="holdfast-acquire", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.lease = self._acquire(self._cancel)
        except BaseException as error:
            self.error = error
        finally:
            self._signals.poke()

    def tell_meanwhile(self, what: Callable[[], str]) -> None:
        """Say on a terminal, now and then, what is waited for. `what()` may ask the server."""
        try:
            if not os.isatty(2):
                return
        except OSError:
            return
        threading.Thread(target=self._tell, args=(what,), name="holdfast-waiting", daemon=True).start()

    def _tell(self, what: Callable[[], str]) -> None:
        pause_s = _FIRST_SAID_S
        while not self._over.wait(pause_s):
            try:
                said = what()
            except Exception:
                return  # the answer to come says it better
            if not self._over.is_set():
                say(said)
            pause_s = _SAID_AGAIN_S

    def wait(self) -> int | None:
        """Until there is an answer, or a signal that ends us: then its number, and what was asked for is taken back.

        A lease that came at the same moment is left to the closing of its client.
        """
        try:
            while self.lease is None and self.error is None:
                for number in self._signals.wait(None):
                    if number in ENDING:
                        self._cancel.set()
                        self._thread.join(_TAKE_BACK_S)
                        return number
        finally:
            self._over.set()
        self._thread.join()
        return None
