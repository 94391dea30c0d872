"""The protected resource: writes with a fencing token below the highest one seen are refused.

Writes without a fencing token are taken, as a resource must that gets none; those by a holder that was granted the lock
before one that has written already are counted as stale.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import defaultdict
from pathlib import Path
from typing import Self

__all__ = ["Resource", "Writer"]


class Resource:
    """Listens at a Unix socket. Reads lines [lock, fence or null, start_ns], answers each with 1 or 0."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.accepted = 0
        self.refused = 0
        self.stale_accepted = 0
        self._guard = threading.Lock()
        self._highest: dict[str, int] = defaultdict(int)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="resource", daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                lock, fence, start_ns = json.loads(line)
                connection.sendall(b"1" if self._write(lock, fence, start_ns) else b"0")

    def _write(self, lock: str, fence: int | None, start_ns: int) -> bool:
        with self._guard:
            mark = start_ns if fence is None else fence
            stale = mark < self._highest[lock]
            self._highest[lock] = max(self._highest[lock], mark)
            if stale and fence is not None:
                self.refused += 1
                return False
            self.accepted += 1
            self.stale_accepted += stale
            return True

    def close(self) -> None:
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Writer:
    """A worker's end; one for each of its threads or tasks."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)

    def write(self, lock: str, fence: int | None, start_ns: int) -> bool:
        """Whether it was accepted."""
        self._socket.sendall(json.dumps([lock, fence, start_ns]).encode() + b"\n")
        return self._socket.recv(1) == b"1"

    def close(self) -> None:
        self._socket.close()
