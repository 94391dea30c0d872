"""The same tests in another place: those of a module, with this folder's fixtures."""

from __future__ import annotations

from types import ModuleType
from typing import Any

__all__ = ["borrowed"]

#: They say nothing about where the locks live, so once is enough.
_ANYWHERE = (
    "test_nobody_there",
    "test_bad_ttls",
    "test_bad_names",
    "test_bad_timeouts",
    "test_bad_namespaces",
    "test_bad_urls",
    "test_clients_of_the_wrong_kind",
    "test_errors_survive_pickling",
)


def borrowed(module: ModuleType, without: tuple[str, ...]) -> dict[str, Any]:
    """All tests of `module` but those named, which have to be there."""
    tests = {name: value for name, value in vars(module).items() if name.startswith("test_")}
    for name in (*_ANYWHERE, *without):
        del tests[name]
    return tests
