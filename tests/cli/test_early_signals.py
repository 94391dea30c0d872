"""Ctrl-C while the command line is still being imported: it ends as any program does, without a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

#: Like our console script, with a signal at the import of one module.
_SCRIPT = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv[0] = "/usr/bin/holdfast"
module = sys.argv[1]
from holdfast.cli import main
sys.exit(main(["status", "--url", "redis://127.0.0.1:1", "x"]))
"""


@pytest.mark.parametrize(
    "module", ["holdfast.cli.exits", "holdfast.cli.report", "holdfast.cli.status", "holdfast.errors"]
)
def test_no_traceback(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT, module], capture_output=True, text=True, timeout=60)
    assert done.returncode in (130, -signal.SIGINT)
    assert done.stderr == ""


def test_who_imports_it_keeps_its_handlers() -> None:
    code = "import signal, holdfast.cli; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
