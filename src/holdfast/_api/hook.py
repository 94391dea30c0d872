"""Where `holdfast.testing` looks on, and gets in between. Costs one comparison otherwise."""

from __future__ import annotations

from typing import Protocol

from holdfast._core.record import LeaseRecord

__all__ = ["Observer"]


class Observer(Protocol):
    """Told of all acquisitions of this process, in the thread or task that makes them."""

    def acquiring(self, name: str, label: str, timeout_s: float | None) -> None:
        """Called when an acquire begins. An exception is what `acquire` raises."""

    def granted(self, record: LeaseRecord) -> None:
        """Called when a lease is granted. An exception gives it back."""


observer: Observer | None = None
