"""What the workers saw and what the nemesis did, written as it happens and read when all is over.

A line is a JSON list. Stamps are CLOCK_MONOTONIC in ns, which all processes of a machine share. A line leaves in one
write, so that nothing is lost when its writer is killed.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Fault", "Grant", "History", "Log", "now_ns"]

now_ns = time.monotonic_ns


class Log:
    """Appends lines to a file of its own."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *line: Any) -> None:
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


@dataclass(slots=True)
class Grant:
    """One stay of one worker: from being told that it holds the lock to asking for its release."""

    ident: str
    worker: str
    lock: str
    fence: int | None
    asked_ns: int
    start_ns: int
    #: Up to here it was entitled to rely on it, as far as it has looked; None: nothing limits that.
    until_ns: int | None
    #: When it asked for the release, or noticed the loss.
    end_ns: int | None = None
    lost: str | None = None
    #: When its request came to stand in the server's queue; None where it has not.
    queued_ns: int | None = None
    #: The last sign of life of its worker in it.
    seen_ns: int = 0
    #: "exclusive", "shared", or for a semaphore how many permits were taken and how many there are.
    mode: str | tuple[int, int] = "exclusive"
    #: What made its worker trust it: see `rig.trace`.
    notes: list[list[Any]] = field(default_factory=list)

    @property
    def valid_to_ns(self) -> int:
        """The end of what it relied on."""
        end = self.end_ns if self.end_ns is not None else self.seen_ns
        return end if self.until_ns is None else min(end, self.until_ns)

    @property
    def inside_to_ns(self) -> int:
        """The end of its code in the critical section, entitled or not."""
        return self.end_ns if self.end_ns is not None else self.seen_ns


@dataclass(slots=True)
class Fault:
    """What the nemesis did. `row`: of the catalogue, where leases are known to be lost by it; else None."""

    kind: str
    begin_ns: int
    end_ns: int
    row: int | None


@dataclass(slots=True)
class History:
    """A whole run."""

    grants: list[Grant] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    #: Attempts that ended without a grant: lock, begin and end.
    failed: list[tuple[str, int, int]] = field(default_factory=list)
    #: What acquires and releases ended with, other than well: how often.
    errors: dict[str, int] = field(default_factory=dict)
    writes: int = 0
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
        """From the files of all workers."""
        history = cls()
        grants: dict[str, Grant] = {}
        for path in paths:
            for line in _lines(path):
                history._take(line, grants, path.stem)
        history.grants = sorted(grants.values(), key=lambda grant: grant.start_ns)
        return history

    def _take(self, line: list[Any], grants: dict[str, Grant], worker: str) -> None:
        kind, *rest = line
        if kind == "granted":
            ident, lock, fence, asked_ns, start_ns, until_ns, *mode = rest
            grant = Grant(ident, worker, lock, fence, asked_ns, start_ns, until_ns, seen_ns=start_ns)
            if mode:
                grant.mode = mode[0] if isinstance(mode[0], str) else tuple(mode[0])
            grants[ident] = grant
        elif kind == "valid":
            ident, at_ns, until_ns = rest
            grants[ident].until_ns = until_ns
            grants[ident].seen_ns = at_ns
        elif kind == "queued":
            ident, grants[ident].queued_ns = rest
        elif kind == "noted":
            ident, notes = rest
            grants[ident].notes += notes
        elif kind == "wrote":
            ident, at_ns, _ = rest
            grants[ident].seen_ns = at_ns
            self.writes += 1
        elif kind == "left":
            ident, at_ns = rest
            grants[ident].end_ns = grants[ident].seen_ns = at_ns
        elif kind == "lost":
            ident, at_ns, reason = rest
            grants[ident].end_ns = grants[ident].seen_ns = at_ns
            grants[ident].lost = reason
            self._count(f"lost: {reason}")
        elif kind == "failed":
            lock, asked_ns, at_ns, why = rest
            self.failed.append((lock, asked_ns, at_ns))
            self._count(f"acquire: {why}")
        elif kind == "error":
            self._count(f"{rest[0]}: {rest[1]}")
        elif kind == "crash":
            self.crashes.append(rest[0])
        elif kind == "counts":
            self.played.update(rest[0])
            self.did.update(rest[1])
        elif kind == "memory":
            self.memory_mb = (rest[0], rest[1])
        elif kind == "broken":
            self.broken.append(f"{worker}: {rest[0]}")

    def _count(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1


def _lines(path: Path) -> Iterator[list[Any]]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):  # else its writer was killed in the middle
                yield json.loads(line)
