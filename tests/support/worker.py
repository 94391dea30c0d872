"""A process of its own that takes locks when told to: `python -m tests.support.worker API URL`.

Lines in: `acquire NAME TTL [CRASH_RELEASE]`, `ensure`, `state`, `release`, `quit`. Lines out: one answer for each, as
JSON. Used to kill, stop and outlive real holders and waiters.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import holdfast
from testbed.waiting import stop


def _say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def _state(lease: Any) -> dict[str, Any]:
    return {"state": lease.state.name, "fence": lease.fencing_token, "token": lease.token}


def _options(args: list[str]) -> dict[str, Any]:
    return dict(zip(("ttl", "crash_release"), map(float, args[1:]), strict=False))


def _threads(url: str) -> None:
    locks = holdfast.connect(url)
    lease: Any = None
    for line in sys.stdin:
        verb, *args = line.split()
        try:
            if verb == "acquire":
                lease = locks.lock(args[0], **_options(args)).acquire()
            elif verb == "ensure":
                lease.ensure_held()
            elif verb == "release":
                lease.release()
            elif verb == "quit":
                return
            _say(**_state(lease))
        except holdfast.HoldfastError as error:
            _say(error=type(error).__name__, text=str(error))


async def _asyncio(url: str) -> None:
    api = importlib.import_module("holdfast.asyncio")

    loop = asyncio.get_running_loop()
    locks = api.connect(url)
    lease: Any = None
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        verb, *args = line.split()
        try:
            if verb == "acquire":
                lease = await locks.lock(args[0], **_options(args)).acquire()
            elif verb == "ensure":
                lease.ensure_held()
            elif verb == "release":
                await lease.release()
            elif verb == "quit":
                break
            _say(**_state(lease))
        except holdfast.HoldfastError as error:
            _say(error=type(error).__name__, text=str(error))
    await locks.close()


class Worker:
    """The parent's end."""

    def __init__(self, api: str, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.worker", api, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def tell(self, line: str) -> None:
        """Send a command; the answer comes with `answer`."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next answer, waited for; {} when the process has ended."""
        assert self._process.stdout is not None
        line: list[str] = []
        reader = threading.Thread(target=lambda: line.append(self._process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        reader.join(60)
        assert line, "no answer from the worker within 60 s"
        answer: dict[str, Any] = json.loads(line[0] or "{}")
        return answer

    def ask(self, line: str) -> dict[str, Any]:
        """Command and answer."""
        self.tell(line)
        return self.answer()

    def signal(self, number: int) -> None:
        """Send a signal to it; when it is to stop, wait until it has."""
        if number == signal.SIGSTOP:
            stop(self.pid)
        else:
            os.kill(self.pid, number)

    def end(self) -> int:
        """End the worker by the end of its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(60)

    def close(self) -> None:
        """Kill the worker, whatever state it is in."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


@contextmanager
def workers(api: str, url: str, count: int) -> Iterator[list[Worker]]:
    """Start that many workers, and end them at the end."""
    started = [Worker(api, url) for _ in range(count)]
    try:
        yield started
    finally:
        for worker in started:
            worker.close()


if __name__ == "__main__":
    if sys.argv[1] == "threads":
        _threads(sys.argv[2])
    else:
        asyncio.run(_asyncio(sys.argv[2]))
