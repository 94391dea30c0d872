"""Who is told what becomes of a lease: for log and metrics, never for decisions.

Laws: telling never waits, never raises, and takes no lock: it may happen in a signal handler, or while the finder of a
loss holds locks.
"""

from __future__ import annotations

from typing import Any


class Report:
    """Silent. `detailed`: it also wants to know of what is no loss. `record`: a `LeaseRecord`."""

    __slots__ = ()

    detailed = False

    def queued(self) -> None:
        """Called when it joins the queue."""

    def acquired(self, record: Any) -> None:
        """Called when it is acquired, with the record of its lease."""

    def busy(self, waited_s: float, holder: Any, is_full: bool) -> None:
        """Called when the time is up, with the `Holder` at that moment (None where it is not known)."""

    def failed(self, error: BaseException) -> None:
        """Called when an error ends it before the caller has it."""

    def released(self) -> None:
        """Called when it is released, if it was acquired."""

    def lost(self, record: Any, reason: str) -> None:
        """Called when it ends without a release."""

    def renewed(self, record: Any, lag_s: float) -> None:
        """Called when it is renewed in the background, `lag_s` after that was due."""

    def suspect(self, record: Any) -> None:
        """Called when a renewal has failed, and validity lasts."""


SILENT = Report()
