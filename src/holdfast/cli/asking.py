"""Asking for a lease in a thread of its own, so that the main one can mind the signals meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.cli.signals import ENDING, Signals

if TYPE_CHECKING:
    from holdfast import Cancel, Lease

__all__ = ["Asked"]

#: After a signal, the time for an acquire that is under way to take itself back, s.
_TAKE_BACK_S = 2.0


class Asked:
    """`acquire(cancel)` under way."""

    def __init__(self, acquire: Callable[[Cancel], Lease], signals: Signals) -> None:
        from holdfast import Cancel

        self.lease: Lease | None = None
        self.error: BaseException | None = None
        self._acquire = acquire
        self._cancel = Cancel()
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

    def wait(self) -> int | None:
        """Until there is an answer, or a signal that ends us: then its number, and what was asked for is taken back.

        A lease that came at the same moment is left to the closing of its client.
        """
        while self.lease is None and self.error is None:
            for number in self._signals.wait(None):
                if number in ENDING:
                    self._cancel.set()
                    self._thread.join(_TAKE_BACK_S)
                    return number
        self._thread.join()
        return None
