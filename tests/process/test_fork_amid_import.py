"""A fork while another thread imports what a call needs for the first time: the child does not wait for that thread."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, threading, time
import holdfast
from holdfast import Client

locks = holdfast.connect("redis://127.0.0.1:1")
importing = threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            importing.set()
            time.sleep(0.5)

sys.meta_path.insert(0, Slow())
threading.Thread(target=lambda: {call}).start()
importing.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    {call}
    os._exit(0)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("holdfast._sync.semaphore", "locks.semaphore('a', 1)"),
        ("holdfast._sync.multilock", "locks.multilock('a', 'b')"),
        ("holdfast._sync.overview", "locks.list()"),
        ("holdfast._api.outcome", "holdfast.Outcome"),
    ],
)
def test_the_child_does_not_wait_for_the_import(module: str, call: str) -> None:
    program = PROGRAM.format(module=module, call=call)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
