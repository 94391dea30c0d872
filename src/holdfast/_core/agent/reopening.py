"""A pause before a connection is opened again that broke as soon as it was opened, each time."""

from __future__ import annotations

from holdfast._core.settings import Settings

__all__ = ["Reopening"]

#: A connection that was open for this long has worked, s.
_LASTED_S = 1.0


class Reopening:
    """For one connection. The pauses grow as those between tries at a server in trouble do."""

    __slots__ = ("_opened_at", "_settings", "pause_s")

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened_at = 0.0
        #: Before it is opened again, s.
        self.pause_s = 0.0

    def opened(self, now: float) -> None:
        """Note when the inbox opened."""
        self._opened_at = now

    def broke(self, now: float) -> None:
        """Double the pause before the next try, or begin without one if the inbox had lasted."""
        settings = self._settings
        if now - self._opened_at > _LASTED_S:
            self.pause_s = 0.0
        else:
            self.pause_s = min(max(2 * self.pause_s, settings.trouble_pause_s), settings.trouble_pause_max_s)
