"""Monkey patching by gevent and eventlet: threads become greenlets, and what waits lets others run.

What was made before the patch waits in the old way: it holds up every greenlet, or lets several in at once where only
one thread can be. So code that keeps such things asks here whether they are still the right ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from holdfast.errors import ConfigurationError

#: What we wait in, as each library calls it.
_NEEDED = {
    "gevent": ("threading", "socket", "time", "select", "queue"),
    "eventlet": ("thread", "socket", "time", "select"),
}


def who_patched() -> str:
    """ "gevent", "eventlet", or "" when neither has patched anything that we use."""
    for library, needed in _NEEDED.items():
        is_patched = _question(library)
        if is_patched is not None and any(map(is_patched, needed)):
            return library
    return ""


def refuse_half_patched() -> None:
    """ConfigurationError when only a part of what we wait in is patched."""
    library = who_patched()
    is_patched = _question(library)
    if is_patched is None:
        return
    missing = [module for module in _NEEDED[library] if not is_patched(module)]
    if missing:
        whole = "gevent.monkey.patch_all()" if library == "gevent" else "eventlet.monkey_patch()"
        raise ConfigurationError(
            "monkey patching",
            f"{library} without {', '.join(missing)}",
            f"all or nothing of what waits: {whole} without exceptions, before anything else is imported",
        )


def _question(library: str) -> Callable[[str], bool] | None:
    """Return a function that tells whether that library has patched a module; None where it is not in use."""
    if library == "gevent":
        monkey = sys.modules.get("gevent.monkey")
        return getattr(monkey, "is_module_patched", None)
    patcher = sys.modules.get("eventlet.patcher") if library else None
    return getattr(patcher, "is_monkey_patched", None)
