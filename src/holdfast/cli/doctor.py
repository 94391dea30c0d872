"""`holdfast doctor`: comes with the next commit."""

from __future__ import annotations

from holdfast.cli.exits import UsageError

__all__ = ["main"]


def main(words: list[str]) -> int:
    """The command."""
    raise UsageError("doctor is not there yet")
