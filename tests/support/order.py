"""The order of the tests: each worker begins with its part of the long ones, and has short ones between and after them.

In the order of their files most workers would begin with tests that wait, all would compute at the same time later,
and one would end alone with long ones that no other can take over.
"""

from __future__ import annotations

from typing import Any

__all__ = ["dealt", "shares"]

#: Their thorough tests are the long forms of others; those of the other folders repeat short ones on other servers.
_LONG = ("cli", "compat", "models", "package", "process", "rig", "simulation")
#: As much of a worker's share has long tests: with what comes then, all workers end at the same time.
_PART = 0.75


def dealt(items: list[Any], workers: int) -> list[Any]:
    """Return the tests in the order in which that many workers share them out (xdist's worksteal: each a stretch)."""
    long = sorted(filter(_is_long, items), key=lambda item: not _is_thorough(item))
    others = [item for item in items if not _is_long(item)]
    found: list[Any] = []
    for number, size in enumerate(shares(len(items), workers)):
        mine = long[number::workers]
        count = len(others) if number == workers - 1 else max(0, size - len(mine))
        found += _between(mine, others[:count])
        others = others[count:]
    return found


def shares(tests: int, workers: int) -> list[int]:
    """Return how many tests each worker is sent at first."""
    found: list[int] = []
    for left in range(workers, 0, -1):
        found.append((tests - sum(found)) // left)
    return found


def _is_thorough(item: Any) -> bool:
    return item.get_closest_marker("thorough") is not None


def _is_long(item: Any) -> bool:
    folder, _, rest = item.nodeid.partition("/")
    return folder == "lab" or (_is_thorough(item) and rest.partition("/")[0] in _LONG)


def _between(long: list[Any], others: list[Any]) -> list[Any]:
    """Spread the long ones, but not between two that share what their module has started."""
    found: list[Any] = []
    placed = 0
    before: set[tuple[str, str, str]] = set()
    for number, item in enumerate(others):
        shared = _shared(item)
        while placed < len(long) and placed * _PART * len(others) <= number * len(long) and not shared & before:
            found.append(long[placed])
            placed += 1
        found.append(item)
        before = shared
    return found + long[placed:]


def _shared(item: Any) -> set[tuple[str, str, str]]:
    """Return the fixtures of its module or class that it uses, and their parameters."""
    info = getattr(item, "_fixtureinfo", None)
    if info is None:
        return set()
    params = item.callspec.params if hasattr(item, "callspec") else {}
    file = item.nodeid.partition("::")[0]
    wide = [name for name, found in info.name2fixturedefs.items() if found[-1].scope in ("class", "module", "package")]
    return {(file, name, repr(params.get(name))) for name in wide}
