"""The thing to be protected: a stock in a SQLite file that lists every sale, and checks fencing tokens.

Law: once a token was shown, no smaller one is served. The token is shown with the *read* as well as with the
write: a check at the write alone would let a late writer in between the next holder's read and its write.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

__all__ = ["LOCK_NAME", "Shop", "Stale"]

LOCK_NAME = "flash-sale"

_BUSY_S = 60.0
"""How long SQLite waits for another process's transaction: those take well under a millisecond."""

_SCHEMA = """
    CREATE TABLE stock (units INTEGER NOT NULL, fence INTEGER NOT NULL);
    CREATE TABLE sales (id INTEGER PRIMARY KEY, unit INTEGER NOT NULL, worker INTEGER NOT NULL, fence INTEGER);
"""


class Stale(Exception):
    """The database has served a greater fencing token: ``mine``, ``seen``."""

    def __init__(self, mine: int, seen: int) -> None:
        super().__init__(f"token {mine} is too old: {seen} was here already")
        self.mine = mine
        self.seen = seen


class Shop:
    """One process's connection to the stock."""

    def __init__(self, path: Path) -> None:
        # Nothing here has to survive a power cut, and waiting for the disk would hide who waits for whom.
        self._database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=OFF")

    @classmethod
    def create(cls, path: Path, units: int) -> Shop:
        """A new file with that stock."""
        shop = cls(path)
        shop._database.executescript(_SCHEMA)
        shop._database.execute("INSERT INTO stock VALUES (?, 0)", (units,))
        return shop

    def units(self, fence: int | None = None) -> int:
        """Units left. With a token: also refuse older ones from now on.

        Raises:
            Stale: a greater token was shown before.
        """
        with self._writing() if fence is not None else contextlib.nullcontext():
            if fence is not None:
                self._check(fence)
                self._database.execute("UPDATE stock SET fence = ?", (fence,))
            return int(self._database.execute("SELECT units FROM stock").fetchone()[0])

    def sell(self, left: int, worker: int, fence: int | None = None) -> None:
        """Write the new stock, ``left``, and the sale of the unit above it.

        Raises:
            Stale: a greater token was shown before; nothing was written.
        """
        with self._writing():
            if fence is not None:
                self._check(fence)
            self._database.execute("UPDATE stock SET units = ?", (left,))
            self._database.execute(
                "INSERT INTO sales (unit, worker, fence) VALUES (?, ?, ?)", (left + 1, worker, fence)
            )

    def sales(self) -> list[tuple[int, int]]:
        """(unit, worker) of every sale, in order."""
        return list(self._database.execute("SELECT unit, worker FROM sales ORDER BY id"))

    def close(self) -> None:
        self._database.close()

    def _check(self, fence: int) -> None:
        seen = int(self._database.execute("SELECT fence FROM stock").fetchone()[0])
        if seen > fence:
            raise Stale(fence, seen)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
