"""What is said to people (stderr, one line each) and to programs (JSON on stdout)."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["JSON_VERSION", "any_output", "clean", "emit_json", "json_error", "say"]

#: Version of the JSON envelope. Fields may be added without a new one; none change or go.
JSON_VERSION = 1


def any_output() -> None:
    """Work with whatever there is to write to: ASCII only, Latin-1, nothing at all."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Else the next connection would have the number. What we run still finds it closed.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    elif hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def clean(text: object) -> str:
    """One line without control characters: names and programs come from other hosts, and may hold anything."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(text))


def say(text: str) -> None:
    """One line on stderr, written at once, so that it does not mix with the command's output. Never fails."""
    try:
        os.write(2, f"holdfast: {clean(text)}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # the reader is gone


def emit_json(command: str, data: dict[str, Any], *, ok: bool = True) -> None:
    """The envelope around what a command reports."""
    import json

    envelope = {"version": JSON_VERSION, "command": command, "ok": ok, **data}
    # What stdout cannot write is escaped as JSON has it.
    ascii_only = (getattr(sys.stdout, "encoding", None) or "utf-8").lower() not in ("utf-8", "utf8")
    sys.stdout.write(json.dumps(envelope, ensure_ascii=ascii_only, default=str) + "\n")
    sys.stdout.flush()


def json_error(command: str, error: BaseException) -> int:
    """The envelope around a failure; returns the exit status."""
    from holdfast.cli import exits

    status = exits.status_of(error)
    said = {"kind": type(error).__name__, "message": exits.sentence(error), "exit": status}
    emit_json(command, {"error": said}, ok=False)
    return status
