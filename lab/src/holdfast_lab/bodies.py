"""What a client of a play is: a process of its own, or a thread of one process that all clients of the play share.

Law: to stop or to end one client leaves all others alone, and is done when it is said to be done.

Theory: a process stands still at SIGSTOP and is gone at SIGKILL, and everything in it with it. A thread stands
still alone: the other threads of its process, those that renew its lease among them, go on. It cannot be killed; it
ends through an exception that nothing catches, and what it leaves behind is whatever its lock does then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Protocol

__all__ = ["Body", "CannotRun", "Forks", "Host", "LockFailed", "ProcessBody"]

#: How long a process may take to stand still, s.
_CEILING_S = 60.0


class CannotRun(Exception):
    """This cell cannot be played here; the text says why."""


class LockFailed(CannotRun):
    """The lock does not do what the play needs, with nothing to blame but itself."""


class Forks:
    """The process that forks clients. One for many runs; ends with this process, however that ends."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._channel = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from holdfast_lab.worker import main; main()", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us: we end it
            )

    def fork(self, what: str = "client") -> tuple[int, socket.socket]:
        """A new "client" process, or a "host" of clients: its pid and our end of its channel."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._channel, [what.encode()], [theirs.fileno()])
        return int.from_bytes(_read(self._channel, 8), "big"), ours

    def reap(self, pid: int) -> None:
        """End the process if it runs, and forget it: the pid may be another's from now on."""
        self._channel.sendall(pid.to_bytes(8, "big"))
        _read(self._channel, 8)

    def close(self) -> None:
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()


def _read(channel: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = channel.recv(count - len(data))
        if not more:
            raise CannotRun("the process that makes clients has ended")
        data += more
    return data


class Body(Protocol):
    """One client, as it is stopped and ended."""

    channel: socket.socket
    #: Whether it ends at once, wherever it is; else at its next step in Python.
    ends_at_once: bool

    async def stop(self) -> None: ...

    def resume(self) -> None: ...

    def end(self) -> None: ...

    def close(self) -> None: ...


class ProcessBody:
    """A client that is a process."""

    ends_at_once = True

    def __init__(self, forks: Forks) -> None:
        self._forks = forks
        self._pid, self.channel = forks.fork()

    async def stop(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        os.kill(self._pid, signal.SIGSTOP)
        deadline = asyncio.get_running_loop().time() + _CEILING_S
        while not self._stands_still():
            if asyncio.get_running_loop().time() > deadline:
                raise CannotRun(f"waited {_CEILING_S:.0f} s for a process to stand still, in vain")
            await asyncio.sleep(0.005)

    def resume(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        self._forks.reap(self._pid)

    def _stands_still(self) -> bool:
        """True if all its threads do; where there is no /proc, the signal has to do."""
        for stat in Path(f"/proc/{self._pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                if stat.read_text(errors="replace").rpartition(")")[2].split()[0] not in "Tt":
                    return False
        return True


class Host:
    """The process whose threads are the clients of one play."""

    def __init__(self, forks: Forks) -> None:
        self._forks = forks
        self._pid, self._channel = forks.fork("host")

    def thread(self, name: str) -> Body:
        return _ThreadBody(self, name)

    def tell(self, what: str, name: str, fd: int | None = None) -> None:
        """An order for one thread, carried out by the main thread when this returns."""
        socket.send_fds(self._channel, [f"{what} {name}".encode()], [] if fd is None else [fd])
        _read(self._channel, 1)

    def close(self) -> None:
        self._channel.close()
        self._forks.reap(self._pid)


class _ThreadBody:
    ends_at_once = False

    def __init__(self, host: Host, name: str) -> None:
        self._host, self._name = host, name
        self.channel, theirs = socket.socketpair()
        with theirs:
            host.tell("start", name, theirs.fileno())

    async def stop(self) -> None:
        """From here on it stands still as soon as it comes back from a call."""
        self._host.tell("stop", self._name)

    def resume(self) -> None:
        self._host.tell("go", self._name)

    def end(self) -> None:
        self._host.tell("end", self._name)

    def close(self) -> None:
        pass  # it ends with its channel, at the latest with its host
