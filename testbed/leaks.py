"""What a long test must leave as it was: threads, descriptors, objects of the library, memory, and keys on the server.

before = leaks.take()
...
leaks.check(before)                       # waits until all is as it was, else fails with the names of what is left

kept = leaks.keys_of(look, "holdfast:*")  # on the server: sizes of keys, by name
"""

from __future__ import annotations

import enum
import gc
import os
import re
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Growth", "Key", "Taken", "check", "keys_of", "left_over", "outlived", "remembered", "take", "wrong_keys"]

#: What was closed or dropped may need this long to end on a busy machine, s.
SETTLE_S = 15.0
#: Threads of the test's own machinery come and go, and those that trio keeps for 10 s.
_PASSING = re.compile(r"^(test|actor|api-loop|asyncio|Thread|proxy|ThreadPoolExecutor|pytest|execnet|rig|Trio)")
#: Where the library makes objects that must not outlive their client. (Those of `identity`
#: belong to threads, those of `leaving` to classes; the engine is one of the process.)
_OBJECTS = re.compile(
    r"(?!holdfast\._(runtime\.identity|api\.leaving|engine\.loop)$)holdfast\._(api|async|sync|engine|front|reports|runtime)\."
    r"|holdfast\._core\.(hold|rwlock|semaphore|multilock)$"
)

#: Those that are remembered for the next client, up to a limit.
_REMEMBERED = frozenset({"holdfast._engine.pack.Group"})


@dataclass(slots=True)
class Taken:
    """What a process has at one moment."""

    threads: Counter[str] = field(default_factory=Counter)
    descriptors: Counter[str] = field(default_factory=Counter)
    objects: Counter[str] = field(default_factory=Counter)

    def beyond(self, before: Taken) -> list[str]:
        """Describe what is here and was not there."""
        found = []
        for kind in ("threads", "descriptors", "objects"):
            more: Counter[str] = getattr(self, kind) - getattr(before, kind)
            found += [f"{kind}: {name}" + (f" × {count}" if count > 1 else "") for name, count in sorted(more.items())]
        return found


def take(*, objects: bool = True) -> Taken:
    """The process as it is now. `objects`: also those of the library, which takes a collection, and a look at all."""
    if not objects:
        return Taken(_threads(), _descriptors())
    gc.collect()
    return Taken(_threads(), _descriptors(), _objects())


def _threads() -> Counter[str]:
    return Counter(thread.name for thread in threading.enumerate() if not _PASSING.match(thread.name))


def _descriptors() -> Counter[str]:
    """Open descriptors by what they are: `socket`, `pipe`, a path. (Numbers of inodes say nothing to a reader.)"""
    found: Counter[str] = Counter()
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return found  # no such thing here
    for number in numbers:
        try:
            found[re.sub(r":\[.*", "", os.readlink(f"/proc/self/fd/{number}"))] += 1
        except OSError:
            pass  # the one that lists them
    return found


def _objects() -> Counter[str]:
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        module = getattr(kind, "__module__", None)
        if isinstance(module, str) and _OBJECTS.match(module) and not issubclass(kind, type | enum.Enum | tuple):
            found[f"{module}.{kind.__name__}"] += 1
    for name in _REMEMBERED:
        found.pop(name, None)
    return found


def left_over(before: Taken, settle_s: float = SETTLE_S, *, objects: bool = True) -> list[str]:
    """Return what is still there after `settle_s`, and was not there before; [] as soon as all is gone.

    Collections do not count: they stop the threads that are to end, on a busy machine for seconds.
    """
    pause_s = 0.02
    while found := take(objects=objects).beyond(before):
        gc.collect()
        if settle_s <= 0:
            return found
        time.sleep(pause_s)
        settle_s -= pause_s
        pause_s = min(1.0, 2 * pause_s)
    return []


def check(before: Taken, settle_s: float = SETTLE_S, *, objects: bool = True) -> None:
    """Fail with the names of what is left."""
    found = left_over(before, settle_s, objects=objects)
    assert not found, f"left over after {settle_s:g} s: {'; '.join(found)}"


# ---------------------------------------------------------------------- memory


class Growth:
    """Samples of something that may rise at first and must not go on rising.

    Memory is noisy: an allocator keeps what it has once had. What leaks grows with every round, so the middle third of
    the samples is compared with the last third, by their medians, and both halves of that stretch must have grown.
    """

    def __init__(self, measure: Callable[[], float] | None = None) -> None:
        self._measure = rss_mb if measure is None else measure
        self.samples: list[float] = []

    def sample(self) -> None:
        """Note it, after a collection."""
        gc.collect()
        self.samples.append(self._measure())

    def steady(self) -> float:
        """Return the growth from the middle third to the last one, if it kept growing; else 0."""
        return steady_growth(self.samples)


def steady_growth(samples: Sequence[float]) -> float:
    """See `Growth`."""
    third = len(samples) // 3
    if third < 2:
        return 0.0
    middle, last = samples[third : 2 * third], samples[-third:]
    begin, end = statistics.median(middle), statistics.median(last)
    between = statistics.median(samples[third + third // 2 : -(third - third // 2)] or middle)
    return end - begin if begin < between < end else 0.0


def rss_mb() -> float:
    """Resident memory of this process, MB; 0 where that cannot be read."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0 if sys.platform != "linux" else float("nan")


# ---------------------------------------------------------------------- the server


@dataclass(frozen=True, slots=True)
class Key:
    """A key on the server. `size`: members, fields or bytes; `pttl_ms`: -1 where it never ends."""

    name: str
    kind: str
    size: int
    pttl_ms: int

    def __str__(self) -> str:
        ends = "never ends" if self.pttl_ms == -1 else f"{self.pttl_ms / 1000:.1f} s left"
        return f"{self.name} ({self.kind}, size {self.size}, {ends})"


_SIZES = {"string": "strlen", "hash": "hlen", "set": "scard", "zset": "zcard", "list": "llen"}


def keys_of(look: Any, pattern: str = "*") -> dict[str, Key]:
    """The keys of that pattern with their sizes; `look` is a redis-py client that decodes its responses."""
    found = {}
    for name in look.scan_iter(pattern, count=1000):
        kind = look.type(name)
        if kind in _SIZES:
            found[name] = Key(name, kind, int(getattr(look, _SIZES[kind])(name)), int(look.pttl(name)))
    return {name: key for name, key in found.items() if key.pttl_ms != -2}


#: Remembered for a while on purpose, with a ttl: the last fencing token, what was given back, how many permits were
#: declared, a condition's last notification, who may leave a barrier, which extensions of a lease were carried out.
_KEPT = re.compile(r":(fence|gone|sem|last|released)$|:order:|:client:")


def remembered(key: str) -> bool:
    """True if it stays for a while on purpose."""
    return _KEPT.search(key) is not None


def outlived(look: Any, key: str) -> bool:
    """True if it is a set of members whose own time is over.

    Permits and readers have a time each. Their key stays a minute longer, so that not every acquire has to prolong it;
    who comes next takes them out. One is left where a server fails over and had not heard of its release.
    """
    if not key.endswith((":sem:holders", ":readers")):
        return False
    seconds, microseconds = look.time()
    return not look.zcount(key, f"({seconds * 1000 + microseconds // 1000}", "+inf")


def wrong_keys(look: Any, pattern: str = "*", gone_max: int | None = None) -> list[str]:
    """Keys that never end, leases and queues that are still there, sets of what was given back beyond `gone_max`."""
    found = []
    for key in keys_of(look, pattern).values():
        if key.pttl_ms == -1:
            found.append(f"never ends: {key}")
        elif key.name.endswith(":gone") and gone_max is not None and key.size > gone_max:
            found.append(f"grows: {key}")
        elif not remembered(key.name) and not outlived(look, key.name):
            found.append(f"left: {key}")
    return found
