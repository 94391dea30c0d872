"""What is said to people (stderr, one line each) and to programs (JSON on stdout)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

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


def flush() -> None:
    """Write what is left. Where that fails, it is raised, and the interpreter finds nothing to write when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise


def clean(text: object) -> str:
    """One line without control characters, and without what this output cannot show.

    Names and programs come from other hosts, and may hold anything.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    known = str(text).encode(encoding, "backslashreplace").decode(encoding)
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in known)


def say(text: str) -> None:
    """One line on stderr, written at once, so that it does not mix with the command's output. Never fails."""
    with suppress(OSError):  # the reader is gone
        os.write(2, f"holdfast: {clean(text)}\n".encode("utf-8", "backslashreplace"))


def json_line(data: dict[str, Any]) -> str:
    """One line of JSON that is safe on a terminal: what cannot be printed, or not on this stdout, is escaped."""
    import json

    ascii_only = (getattr(sys.stdout, "encoding", None) or "utf-8").lower() not in ("utf-8", "utf8")
    text = json.dumps(data, ensure_ascii=ascii_only, default=_time)
    # JSON itself is printable, so this changes strings only: C1 controls, DEL, bidi overrides, lone surrogates.
    return "".join(char if char.isprintable() else _escaped(char) for char in text) + "\n"


def _time(moment: Any) -> str:
    """Write a time, which is all that JSON does not know of what there is to tell."""
    text: str = moment.isoformat(timespec="milliseconds")
    return text


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def emit_json(command: str, data: dict[str, Any], *, ok: bool = True) -> None:
    """The envelope around what a command reports."""
    sys.stdout.write(json_line({"version": JSON_VERSION, "command": command, "ok": ok, **data}))
    sys.stdout.flush()


@contextmanager
def answering(command: str, in_json: bool) -> Iterator[None]:
    """Tell of an error in the envelope, where the command answers in JSON."""
    from holdfast.cli import exits

    try:
        yield
    except Exception as error:
        if not in_json or isinstance(error, BrokenPipeError):
            raise
        status = exits.status_of(error)
        said = {"kind": type(error).__name__, "message": exits.sentence(error), "exit": status}
        emit_json(command, {"error": said}, ok=False)
        raise SystemExit(status) from None
