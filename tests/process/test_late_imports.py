"""Late imports, where a signal handler comes in between."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import embedded
from holdfast._runtime.lazily import lazily
from tests.support.bytecodes import at_bytecode, bytecodes_of

PROGRAM = """
import os, signal, sys, time
from importlib.machinery import PathFinder
import holdfast
from holdfast import Client

locks, others = holdfast.connect(sys.argv[1]), holdfast.connect(sys.argv[1])
held = others.lock("late").acquire()
found = []

def in_vain():
    try:
        locks.lock("late").acquire(timeout=0.01)
    except holdfast.AcquireTimeout as error:
        return error.holder

signal.signal(signal.SIGUSR1, lambda *_: found.append({call}))

class Amid:
    def find_spec(self, name, path=None, target=None):
        if name != {module!r}:
            return None
        spec = PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def amid(module):
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.2)
            run(module)

        spec.loader.exec_module = amid
        return spec

sys.meta_path.insert(0, Amid())
found.append({call})
assert len(found) == 2 and type(found[0]) is type(found[1]), found
assert found[0] is not None
held.release()
"""


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("holdfast._sync.semaphore", "locks.semaphore('a', 1)"),
        ("holdfast._sync.multilock", "locks.multilock('a', 'b')"),
        ("holdfast._sync.overview", "in_vain()"),
        ("holdfast._api.outcome", "holdfast.Outcome"),
        ("hashlib", "locks._session.driver and holdfast._api.outcome.mark_of('a')"),
    ],
)
def test_a_handler_uses_what_the_thread_below_imports(module: str, call: str, valkey_server: embedded.Server) -> None:
    setup = "" if module != "hashlib" else "import holdfast._api.outcome; sys.modules.pop('hashlib', None)"
    program = PROGRAM.format(module=module, call=call).replace("found = []", f"found = []; {setup}")
    command = [sys.executable, "-c", program, valkey_server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the name of one more module, which takes a moment to import."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made: list[str] = []

    def name(text: str = "import time\ntime.sleep(0.001)\nwhole = True\n") -> str:
        made.append(f"late_{len(made)}")
        (tmp_path / f"{made[-1]}.py").write_text(text)
        importlib.invalidate_caches()
        return made[-1]

    yield name
    for each in made:
        sys.modules.pop(each, None)


def test_a_handler_at_any_bytecode_has_the_whole_of_it(late: Any) -> None:
    found: list[Any] = []
    for number in range(len(bytecodes_of(partial(lazily, late())))):
        name = late()

        def handler(_frame: Any, name: str = name) -> None:
            found.append(lazily(name))

        module, place = at_bytecode(number, handler, partial(lazily, name))
        assert module.whole
        assert place is None or found.pop() is module


class Interrupted(Exception):
    """Of a handler."""


def test_a_handler_that_raises_at_any_bytecode_leaves_it_to_be_imported(late: Any) -> None:
    def strike(_frame: Any) -> None:
        raise Interrupted

    for number in range(len(bytecodes_of(partial(lazily, late())))):
        name = late()
        try:
            at_bytecode(number, strike, partial(lazily, name))
        except Interrupted:
            pass
        assert lazily(name).whole


def test_without_another_thread_it_is_imported_all_the_same(late: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    name = late("import threading\nthread = threading.get_ident()\n")
    monkeypatch.setattr("_thread.start_new_thread", cannot)
    assert lazily(name).thread == threading.get_ident()


def test_what_cannot_be_imported_is_told_to_who_needs_it(late: Any) -> None:
    name = late("raise ZeroDivisionError\n")
    with pytest.raises(ZeroDivisionError):
        lazily(name)
    with pytest.raises(ModuleNotFoundError):
        lazily("holdfast.no_such_module")


def test_a_handler_amid_an_import_of_the_program_imports_by_itself(late: Any) -> None:
    """Another thread would wait for what the one below the handler imports."""
    needs, found = late("import late_1\nwhole = True\n"), list[Any]()
    below = late("import signal\nsignal.raise_signal(signal.SIGUSR1)\nwhole = True\n")
    before = signal.signal(signal.SIGUSR1, lambda *_: found.append(lazily(needs)))
    try:
        assert importlib.import_module(below).whole
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [module.whole for module in found] == [True]
