"""`queue_limit` is exact, however many ask at once: over processes, in a Cluster, and after a failover."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any, Self

import pytest

import holdfast
from testbed.topologies import Cluster, Topology, WithSentinel, listening, plain
from testbed.waiting import eventually

LIMIT = 5
#: Everything that a failover takes on a busy machine, s.
FAILOVER_S = 90

#: Each thread asks once, and says what came of it, until it is told to release.
_PROGRAM = """
import sys, threading
import holdfast

url, name, count, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
locks = holdfast.connect(url, ttl=60)
begin = threading.Barrier(count + 1)
saying = threading.Lock()

def say(what):
    with saying:
        print(what, flush=True)

def one():
    begin.wait()
    try:
        lease = locks.lock(name, queue_limit=limit).acquire()
    except holdfast.QueueFull:
        say("full")
    else:
        say("got")
        lease.release()

threads = [threading.Thread(target=one) for _ in range(count)]
for each in threads:
    each.start()
locks.lock(name + "-warm").acquire().release()
print("ready", flush=True)
sys.stdin.readline()
begin.wait()
for each in threads:
    each.join()
"""


class Crowds:
    """Processes whose threads are about to ask, and all that they say."""

    def __init__(self, url: str, name: str, processes: int, threads: int) -> None:
        self.count = processes * threads
        self.said: list[str] = []
        words = [sys.executable, "-c", _PROGRAM, url, name, str(threads), str(LIMIT)]
        self._started = [
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
        ]
        self._readers = [threading.Thread(target=self._read, args=(each.stdout,)) for each in self._started]

    def _read(self, lines: Any) -> None:
        for line in lines:
            self.said.append(line.strip())

    def ask(self) -> None:
        for each in self._started:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()

    def __enter__(self) -> Self:
        for reader in self._readers:
            reader.start()
        eventually(lambda: self.said.count("ready") == len(self._started), "they are ready", 60)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._started:
            each.kill()
            each.wait()
        for reader in self._readers:
            reader.join()
        for each in self._started:
            for pipe in (each.stdin, each.stdout):
                assert pipe is not None
                pipe.close()


class One(Topology):
    """One server."""

    def __init__(self) -> None:
        super().__init__()
        self._server = super().start("valkey")

    @property
    def url(self) -> str:
        return self._server.url


@pytest.mark.parametrize("make", [One, pytest.param(Cluster, marks=pytest.mark.thorough)])
def test_this_many_wait_and_no_more(make: type[Topology], unique_name: str) -> None:
    """64 threads in each of 4 processes ask at once."""
    with make() as servers, holdfast.connect(servers.url) as locks, Crowds(servers.url, unique_name, 4, 64) as crowds:
        lock = locks.lock(unique_name, ttl=60)
        with lock:
            crowds.ask()
            eventually(lambda: crowds.said.count("full") == crowds.count - LIMIT, "the rest is turned away", 60)
            assert (lock.status().waiters, crowds.said.count("got")) == (LIMIT, 0)
        eventually(lambda: crowds.said.count("got") == LIMIT, "those get it", 60)
        assert crowds.said.count("full") == crowds.count - LIMIT


@pytest.mark.thorough
def test_those_that_wait_count_after_a_failover(unique_name: str) -> None:
    with WithSentinel(2) as servers:
        servers.ready_for_failover()
        with holdfast.connect(servers.url) as locks, Crowds(servers.url, unique_name, 2, 8) as crowds:
            lock = locks.lock(unique_name, ttl=120)
            lease = lock.acquire()
            crowds.ask()
            eventually(lambda: crowds.said.count("full") == crowds.count - LIMIT, "the rest is turned away", 60)
            assert servers.raw.wait(2, 30_000) == 2
            servers.master.kill()
            with plain(servers.failed_over()) as new:
                # Until they have found it, they count as gone.
                eventually(lambda: _listening(new, unique_name) == LIMIT, "they listen at the new master", FAILOVER_S)
            with pytest.raises(holdfast.QueueFull), holdfast.connect(servers.url, queue_limit=LIMIT) as late:
                late.lock(unique_name).acquire(timeout=60)
            lease.release()
            eventually(lambda: crowds.said.count("got") == LIMIT, "those get it", FAILOVER_S)


def _listening(client: Any, name: str) -> int:
    """Count the waiters that have an inbox there."""
    waiting = client.zrange(f"holdfast:{{{name}}}:queue", 0, -1)
    return sum(listening(client, f"holdfast:inbox:{token.partition(':')[0]}") == 1 for token in waiting)
