"""gunicorn with real workers: forked from a process that has used the client, reloaded, stopped, killed."""

from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("gunicorn", reason="`make frameworks` has it")

import holdfast
from testbed.servers import free_port, start
from testbed.waiting import eventually
from tests.frameworks.programs import Programs
from tests.frameworks.shops import PATIENCE_S

KINDS = {"sync": (), "gthread": ("--threads", "4"), "preload": ("--preload", "--threads", "4")}


class Gunicorn:
    """Two workers with the example, and another client of its locks."""

    def __init__(self, programs: Programs, locks: holdfast.Client, threads: ThreadPoolExecutor, *options: str) -> None:
        port = free_port()
        self.locks = locks
        self._threads = threads
        self._url = f"http://127.0.0.1:{port}"
        self._programs = programs
        bind = ("--bind", f"127.0.0.1:{port}", "--no-control-socket")
        self.program = programs.start("gunicorn", "--workers", "2", *bind, *options, "examples.frameworks.wsgi_app:app")
        eventually(self._answers, "it answers", PATIENCE_S)

    def _answers(self) -> bool:
        self._programs.check()
        try:
            return self.ask("/first") > 0
        except OSError:
            return False

    def log(self) -> str:
        return self._programs.log_of(self.program)

    def ask(self, name: str, seconds: float = 0) -> int:
        """The worker that answered."""
        with urllib.request.urlopen(f"{self._url}{name}?{seconds}", timeout=PATIENCE_S) as answer:
            return int(answer.read().split()[0])

    def working(self, name: str, seconds: float) -> tuple[Future[int], int]:
        """A request that holds that lock, and the worker that holds it."""
        answer = self._threads.submit(self.ask, name, seconds)
        lock = self.locks.lock(name)

        def pid() -> int | None:
            holder = lock.holder()
            return None if holder is None else holder.pid

        return answer, eventually(pid, "a worker holds it, and says which", PATIENCE_S)


@pytest.fixture
def gunicorn(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gunicorn]:
    options: tuple[str, ...] = request.param
    with start() as server, holdfast.connect(server.url) as locks, ThreadPoolExecutor(8) as threads:
        programs = Programs(tmp_path, HOLDFAST_URL=server.url)
        try:
            yield Gunicorn(programs, locks, threads, *options)
        finally:
            programs.close()
            print(programs.logs())


@pytest.mark.parametrize("gunicorn", KINDS.values(), ids=KINDS, indirect=True)
def test_workers_exclude_each_other_and_a_stop_lets_them_finish(gunicorn: Gunicorn) -> None:
    first, pid = gunicorn.working("/a", 3)
    with pytest.raises(urllib.error.HTTPError) as refused:
        gunicorn.ask("/a")
    with refused.value as answer:
        assert answer.code == 423 and answer.headers["Retry-After"] == "1"
    assert first.result(PATIENCE_S) == pid

    last, pid = gunicorn.working("/b", 2)
    gunicorn.program.terminate()
    assert last.result(PATIENCE_S) == pid  # SIGTERM: what has begun is finished, under its lock
    assert gunicorn.program.wait(PATIENCE_S) == 0
    assert not gunicorn.locks.lock("/b").locked()


@pytest.mark.parametrize("gunicorn", [KINDS["gthread"]], ids=["gthread"], indirect=True)
def test_a_reload_keeps_what_is_held_and_a_killed_worker_costs_a_ttl(gunicorn: Gunicorn) -> None:
    before, old = gunicorn.working("/a", 4)
    gunicorn.program.send_signal(signal.SIGHUP)
    assert before.result(PATIENCE_S) == old
    assert not gunicorn.locks.lock("/a").locked()
    new = eventually(lambda: (pid := gunicorn.ask("/b")) != old and pid, "a new worker answers", PATIENCE_S)
    assert new != gunicorn.program.pid

    lost, pid = gunicorn.working("/c", 60)
    os.kill(pid, signal.SIGKILL)
    assert isinstance(lost.exception(PATIENCE_S), OSError)
    gunicorn.locks.lock("/c").acquire(timeout=PATIENCE_S).release()
    eventually(lambda: gunicorn.ask("/c") != pid, "the others go on", PATIENCE_S)


@pytest.mark.parametrize("gunicorn", [("--timeout", "2")], ids=["sync"], indirect=True)
def test_a_request_that_is_stuck_gives_its_lock_back(gunicorn: Gunicorn) -> None:
    stuck, pid = gunicorn.working("/a", 60)
    gunicorn.locks.lock("/a").acquire(timeout=PATIENCE_S).release()
    assert stuck.exception(PATIENCE_S) is not None
    assert gunicorn.ask("/a") != pid
    assert "SystemExit" in gunicorn.log()  # that ended the block
