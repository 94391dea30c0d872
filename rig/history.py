"""What everyone saw, written as it happens in the format of verify/FORMAT.md, and put into one file when all is over.

Stamps are CLOCK_MONOTONIC in ns, which all processes of a machine share. A line leaves in one write, so that nothing is
lost when its writer is killed. Lines of event "note" are the rig's own: they are read here and left out of the file.
"""

from __future__ import annotations

import json
import lzma
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["History", "Log", "now_ns"]

now_ns = time.monotonic_ns

Event = dict[str, Any]


def _line(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


class Log:
    """Appends lines to a file of its own."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def event(self, what: str, p: str, t: int | None = None, **fields: Any) -> None:
        """Write one event of `p`, at `t` (now)."""
        os.write(self._file, _line({"t": now_ns() if t is None else t, "p": p, "e": what, **fields}))

    def note(self, what: str, *said: Any) -> None:
        """Write what only the rig wants to know."""
        os.write(self._file, _line({"e": "note", "what": what, "said": said}))

    def close(self) -> None:
        os.close(self._file)


@dataclass(slots=True)
class History:
    """A whole run."""

    events: list[Event] = field(default_factory=list)
    #: What acquires and releases ended with, other than well: how often.
    errors: Counter[str] = field(default_factory=Counter)
    #: Lines of workers that died of something unforeseen.
    crashes: list[str] = field(default_factory=list)
    #: What lives under process faults played and did, and how often.
    played: Counter[str] = field(default_factory=Counter)
    did: Counter[str] = field(default_factory=Counter)
    #: What they found to be wrong: promises that were broken, operations that hung, what was left over.
    broken: list[str] = field(default_factory=list)
    #: Of the longest of these lives, at first and at last.
    memory_mb: tuple[float, float] | None = None

    @classmethod
    def read(cls, paths: Iterable[Path]) -> History:
        """Read the files of all workers."""
        history = cls()
        for path in paths:
            for line in _lines(path):
                if line["e"] == "note":
                    history._note(line["what"], line["said"], path.stem)
                else:
                    history._count(line)
                    history.events.append(line)
        history.events.sort(key=lambda event: event["t"])
        return history

    def _note(self, what: str, said: list[Any], worker: str) -> None:
        if what == "error":
            self.errors[f"{said[0]}: {said[1]}"] += 1
        elif what == "crash":
            self.crashes.append(said[0])
        elif what == "counts":
            self.played.update(said[0])
            self.did.update(said[1])
        elif what == "memory":
            self.memory_mb = (said[0], said[1])
        elif what == "broken":
            self.broken.append(f"{worker}: {said[0]}")

    def _count(self, event: Event) -> None:
        if event["e"] == "lost":
            self.errors[f"lost: {event['why']}"] += 1
        elif event["e"] == "not":
            self.errors[f"acquire: {event.get('error', event['why'])}"] += 1

    def number(self, what: str, **fields: Any) -> int:
        """Count the events of that kind that have these fields."""
        wanted = fields.items()
        return sum(event["e"] == what and wanted <= event.items() for event in self.events)

    @property
    def operations(self) -> int:
        """Acquires, extensions, releases, writes and reads that were begun."""
        return sum(event["e"] in ("ask", "write", "read") for event in self.events)

    @property
    def handed_on(self) -> int:
        """Leases that follow one of the same process by the next fencing token: a server's is its time in µs."""
        last: dict[str, tuple[str, int]] = {}
        count = 0
        for event in self.events:
            if event["e"] == "got" and event.get("token") is not None:
                worker = event["p"].split(".")[0]
                count += last.get(event["lock"]) == (worker, event["token"] - 1)
                last[event["lock"]] = (worker, event["token"])
        return count

    def save(self, path: Path, header: Event) -> None:
        """Write the file that anyone can check; compressed if its name ends in .xz."""
        with lzma.open(path, "wb", preset=6) if path.suffix == ".xz" else path.open("wb") as file:
            for event in (header | {"events": len(self.events)}, *self.events):
                file.write(_line(event))


def _lines(path: Path) -> Iterator[Event]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):  # else its writer was killed in the middle
                yield json.loads(line)
