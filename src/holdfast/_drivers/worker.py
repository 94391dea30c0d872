"""A background thread that is started when first needed, and ends when it is told to."""

from __future__ import annotations

import threading

from holdfast._drivers.teller import CANNOT_START
from holdfast._transport.clock import clock
from holdfast.errors import CannotStartThread

__all__ = ["Worker"]


class Worker:
    """A daemon thread that is started when first needed.

    A thread that finds none starts one, without a lock; of several that were started at once the first one stays.
    """

    name = "holdfast"

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self._stopping = False
        self._place = [None]  # taken by the one that stays

    def ends(self) -> bool:
        """True if it has been told to end."""
        return self._stopping

    def start(self) -> None:
        """Start it unless it runs. Raises `CannotStartThread`."""
        if self.thread is None and not self._stopping:
            try:
                threading.Thread(target=self._run, name=self.name, daemon=True).start()
            except CANNOT_START as error:
                raise CannotStartThread(str(error)) from error

    def _run(self) -> None:
        while True:
            try:
                self._place.pop()
            except IndexError:
                return
            self.thread = threading.current_thread()
            try:
                self.main()
            finally:
                self.thread = None
                self._place.append(None)
            if not self.has_work():  # that came at the last moment, and found a thread
                return

    def has_work(self) -> bool:
        """True if it should go on after all, when `main` has ended."""
        return False

    def main(self) -> None:
        """Run in the thread."""
        raise NotImplementedError

    def join(self, until: float) -> None:
        """Wait for its end, unless we are it."""
        thread = self.thread
        if thread is not None and thread.ident != threading.get_ident():
            thread.join(max(0.0, until - clock()))
