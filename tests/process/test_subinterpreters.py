"""A program in another interpreter of the process, as mod_wsgi runs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast import embedded
from testbed.waiting import PATIENCE_S

THERE = """
import sys, threading
sys.path[:0] = {path!r}
import holdfast

threads = []
with holdfast.connect({url!r}) as locks:
    lock = locks.lock({name!r})
    try:
        with lock as lease:
            lease.ensure_held()
        threads = threading.enumerate()
        print("held and released")
    except holdfast.HoldfastError as error:
        print(type(error).__name__, error)
    print("left behind:", lock.status().holder)
for thread in threads:  # CPython 3.11 ends an interpreter with its youngest thread: not with ours
    if thread is not threading.current_thread():
        thread.join()
"""
HERE = """
import sys
import _xxsubinterpreters as interpreters

interpreters.run_string(interpreters.create(isolated=sys.argv[2] == "isolated"), sys.argv[1])
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from Python 3.12 on, hiredis loads in no isolated interpreter")
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("with threads", "held and released"),
        ("isolated", "CannotStartThread the thread that renews leases could not be started (thread is not supported"),
    ],
)
def test_it_works_where_threads_can_be_started_and_else_says_that_they_cannot(
    how: str, said: str, valkey_server: embedded.Server, unique_name: str
) -> None:
    there = THERE.format(path=sys.path, url=valkey_server.url, name=unique_name)
    words = [sys.executable, "-c", HERE, there, how]
    done = subprocess.run(words, stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True, text=True)
    first, last = done.stdout.splitlines()
    assert first.startswith(said)
    assert last == "left behind: None"
