"""What the demo shows: a live progress bar in a terminal (with rich), plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self

__all__ = ["Screen", "open_screen"]

_PLAIN_STEPS = 5
"""Progress lines of one sale where nothing can be drawn over; one that oversells gets fewer and fewer."""


class Screen(Protocol):
    """Somewhere to show the sale."""

    def say(self, text: str = "") -> None:
        """One line that stays."""

    def begin(self, title: str, total: int) -> None:
        """A sale begins."""

    def progress(self, done: int) -> None:
        """Show that `done` units are sold."""

    def end(self) -> None:
        """The sale is over."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_screen(*, plain: bool = False) -> Screen:
    """The best screen there is for standard output."""
    if plain or not sys.stdout.isatty():
        return _Plain()
    try:
        return _Rich()
    except ImportError:  # rich comes with the tools for development
        return _Plain()


class _Base:
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        raise NotImplementedError


class _Plain(_Base):
    def __init__(self) -> None:
        self._total = 0
        self._next = 0
        self._began_at = 0.0

    def say(self, text: str = "") -> None:
        print(text, flush=True)

    def begin(self, title: str, total: int) -> None:
        self._total, self._next, self._began_at = total, total // _PLAIN_STEPS, time.monotonic()
        self.say(title)

    def progress(self, done: int) -> None:
        if self._total and done >= self._next:
            self._next = done * 2 if done >= self._total else done + self._total // _PLAIN_STEPS
            self.say(f"  {time.monotonic() - self._began_at:5.1f} s  {done} sold")

    def end(self) -> None:
        self._total = 0


class _Rich(_Base):
    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False)
        self._bar: Any = None
        self._task: Any = None

    def say(self, text: str = "") -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def begin(self, title: str, total: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.say(title)
        self._bar = Progress(
            TextColumn("  "),
            BarColumn(bar_width=40),
            TextColumn("{task.completed:.0f} sold of {task.total:.0f}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=total)
        self._bar.start()

    def progress(self, done: int) -> None:
        self._bar.update(self._task, completed=done)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
