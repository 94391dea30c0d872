"""Imports that wait until they are needed, on paths where another thread may fork.

Law: no fork comes in the middle of one: the child would wait forever for the thread that imports.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

#: Held around such an import. Reentrant: what is imported may be what an import has been interrupted for, by a signal
#: handler that forks.
importing = threading.RLock()


def lazily(module: str) -> Any:
    """The module of that name."""
    with importing:
        import_module(module)
    return sys.modules[module]


def later(module: str, *names: str) -> list[Callable[..., Any]]:
    """Return what the module has by these names, to be called: a call imports the module where that was not done."""
    return [lambda *args, _name=name, **options: getattr(lazily(module), _name)(*args, **options) for name in names]


def _in_child() -> None:
    with suppress(RuntimeError):  # uWSGI forks without a word before
        importing.release()


def _at_exit() -> None:
    """Call what was registered for the end of the process by imports as late as in a handler of `atexit`."""
    hooks = sys.modules.get("holdfast._runtime.exit_hooks")
    if hooks is not None:
        hooks.at_end()


atexit.register(_at_exit)
os.register_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=_in_child)
