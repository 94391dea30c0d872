"""Who is told what becomes of a lease: for log and metrics, never for decisions.

Laws: telling never waits, never raises, and takes no lock: it may happen in a signal handler, or while the finder of a
loss holds locks.
"""

from __future__ import annotations

from typing import Any

__all__ = ["SILENT", "Report"]


class Report:
    """Silent. `detailed`: it also wants to know of what is no loss. `record`: a `LeaseRecord`."""

    __slots__ = ()

    detailed = False

    def queued(self) -> None:
        """It was queued for."""

    def acquired(self, record: Any) -> None:
        """It was acquired, and this is what its lease stands on."""

    def busy(self, waited_s: float, holder: Any) -> None:
        """It was not acquired in time, but held by that `Holder` (None where it is not known)."""

    def failed(self, error: BaseException) -> None:
        """That has come up before the caller had it."""

    def released(self) -> None:
        """It was given back, if it was acquired."""

    def lost(self, record: Any, reason: str) -> None:
        """It has ended without a release."""

    def renewed(self, record: Any, lag_s: float) -> None:
        """It was extended by itself, so long after that was due."""

    def suspect(self, record: Any) -> None:
        """A renewal has failed, and validity lasts."""


SILENT = Report()
