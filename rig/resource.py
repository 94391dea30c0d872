"""The protected resource: a small server of its own, which refuses what is older than what it has accepted.

`python -m rig.resource SOCKET LOG`. It keeps one value for each lock, and the highest fencing token that it has seen
for it: a write or a read with a lower one is refused. What comes without a fencing token is taken, as a resource must
that gets none. It writes what it has done to the history itself, at the moment at which it does it.
"""

from __future__ import annotations

import json
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from rig.history import Log, now_ns

__all__ = ["Resource", "Writer", "serve"]


class _Register:
    """What a lock protects."""

    def __init__(self) -> None:
        self.value: str | None = None
        self.highest = 0


def serve(path: str, log: Log) -> None:
    """Answer lines [do, p, op, lock, token, value, from], one at a time, with [ok, value]; until the process ends."""
    registers: dict[str, _Register] = {}
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(256)
    print("ready", flush=True)
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    waiting: dict[socket.socket, bytes] = {}
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                accepted, _ = listener.accept()
                waiting[accepted] = b""
                ready.register(accepted, selectors.EVENT_READ)
                continue
            client = key.fileobj
            assert isinstance(client, socket.socket)
            try:
                got = client.recv(65_536)
                *lines, waiting[client] = (waiting[client] + got).split(b"\n")
                for line in lines:
                    client.sendall(_answer(json.loads(line), registers, log))
            except OSError:
                got = b""
            if not got:
                ready.unregister(client)
                client.close()
                del waiting[client]


def _answer(request: list[Any], registers: dict[str, _Register], log: Log) -> bytes:
    do, p, op, lock, token, value, from_ns = request
    register = registers.setdefault(lock, _Register())
    accepted = token is None or token >= register.highest
    if accepted and do == "write":
        register.highest = max(register.highest, token or 0)
        register.value = value
    elif accepted:  # readers that are inside together have tokens of their own: a read is no reason to refuse
        value = register.value
    log.event(do, p, now_ns(), op=op, lock=lock, token=token, value=value, ok=accepted, **{"from": from_ns})
    return json.dumps([accepted, value]).encode() + b"\n"


class Resource:
    """The server's process."""

    def __init__(self, path: Path, log: Path) -> None:
        self.path = path
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rig.resource", str(path), str(log)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self.close()
            raise RuntimeError("the protected resource did not start")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
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
        self._values = 0

    def write(self, p: str, op: int | str, lock: str, token: int | None) -> bool:
        """Write a value; True if it was accepted."""
        self._values += 1
        accepted, _ = self._ask("write", p, op, lock, token, f"{p}/{op}/{self._values}")
        return bool(accepted)

    def read(self, p: str, op: int | str, lock: str, token: int | None) -> str | None:
        """Return what is stored; None: nothing, or refused."""
        accepted, value = self._ask("read", p, op, lock, token, None)
        return value if accepted else None

    def _ask(self, *request: Any) -> Any:
        self._socket.sendall(json.dumps([*request, now_ns()]).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            got = self._socket.recv(4096)
            if not got:
                raise ConnectionError("the protected resource is gone")
            answer += got
        return json.loads(answer)

    def close(self) -> None:
        self._socket.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the rig, which ends us
    serve(sys.argv[1], Log(Path(sys.argv[2])))
