"""What the threads or tasks of a life share, and what strikes them: its configuration, log, clients, and counts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import pkgutil
import random
import traceback
import weakref
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from rig.history import Log
from rig.resource import Writer
from rig.watch import Watch

__all__ = ["NO_THREAD", "OWN_TTL_S", "Interrupted", "LifeState", "Shared", "driven", "excused"]

#: How long a lock of the life's own stays on the server if it is never given back, s.
OWN_TTL_S = 60.0
NO_THREAD = "can't start new thread"


class Interrupted(KeyboardInterrupt):
    """Raised by a signal's handler, at any bytecode of the main thread."""


def excused(error: BaseException) -> bool:
    """True if a limit that we have set explains it, where the rig itself or a user's own code ran into it."""
    if isinstance(error, Interrupted):
        return True
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return isinstance(error, RuntimeError) and NO_THREAD in str(error)


def driven(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run what never waits for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a blocking lock waited for an event loop")


class Shared:
    """A client, and the objects of it that all loops use."""

    def __init__(self, client: Any, over_quorum: bool) -> None:
        self.client = client
        self.election = client.election("torture-election")
        self.condition: Any = None if over_quorum else client.condition(client.lock("torture-cond"))
        self.closed = False


class LifeState(ABC):
    """What the loops of one life share."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.name: str = config["name"]
        self.seed: str = config["seed"]
        self.blocking = config["api"] != "asyncio"
        self.faults = frozenset(config["faults"])
        self.over_quorum: bool = config["over_quorum"]
        self.locks: list[str] = config["locks"]
        self.resource: str = config["resource"]
        #: What an operation may last beyond its own timeout, s.
        self.bound_s: float = config["bound_s"]
        self.log = Log(Path(config["log"]))
        self.played: Counter[str] = Counter()
        self.did: Counter[str] = Counter()
        self.armed = False
        self.stopping = False
        self.cancels: deque[Any] = deque(maxlen=4)
        self.spare_leases: deque[Any] = deque()
        self.spare_clients: deque[tuple[Any, Any]] = deque()
        self.clients: list[Shared] = []
        #: When close() was called.
        self.closed_ns: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._random = random.Random(self.seed)
        self._module = importlib.import_module("holdfast.asyncio" if config["api"] == "asyncio" else "holdfast")
        self._public = importlib.import_module("holdfast")
        self.errors: type[Exception] = self._public.HoldfastError
        # The family is imported now: its classes are no leak, and what a handler raises where the import system takes
        # its lock leaves that held, whatever the library does: a fork by another thread hangs then.
        for name in self._module.__all__:
            getattr(self._module, name)
        for each in pkgutil.walk_packages(self._public.__path__, "holdfast."):
            if each.name.startswith("holdfast._") and not each.name.endswith(("__main__", "trio_loop")):
                importlib.import_module(each.name)
        self._writers: dict[int, Writer] = {}
        self._told: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._told_s = 0.0
        self.watch = Watch(self.hung)
        self.watch.each(self._tell)
        extra = {"outlived": "outlived", "close": "close_one", "fork": "fork", "handler": "spare"}
        self.extra_actions = frozenset(action for fault, action in extra.items() if fault in self.faults)

    # ---- for the actions ----

    def connect(self) -> Any:
        """A client of its own."""
        return self._module.connect(self.config["url"], ttl=self.config["ttl_s"], **self.config["options"])

    def new_cancel(self) -> Any:
        """Make a `Cancel` that a handler may set."""
        cancel = self._public.Cancel()
        self.cancels.append(cancel)
        return cancel

    def write(self, number: int, p: str, op: str, lock: str, fence: int) -> bool:
        """Write to the resource; True when it was accepted."""
        if number not in self._writers:
            self._writers[number] = Writer(self.resource)
        return self._writers[number].write(p, op, lock, fence)

    def call_soon(self, function: Callable[[], Any]) -> None:
        """Run a coroutine function in the event loop, from a signal's handler."""
        loop = self.loop
        if loop is None:
            return

        async def call() -> None:
            with contextlib.suppress(self.errors):
                await function()

        loop.call_soon_threadsafe(lambda: loop.create_task(call()))

    def broken(self, what: str) -> None:
        """A promise was."""
        self.log.note("broken", f"({', '.join(sorted(self.faults)) or 'no faults'}) {what}"[:20_000])

    def crashed(self, error: BaseException) -> None:
        """Report an exception that no operation may raise."""
        text = "".join(traceback.format_exception(error))
        self.broken(f"an operation raised {type(error).__name__}: {error}\n{text[-2500:]}")

    def excused(self, error: BaseException) -> bool:
        """True if a limit explains it that we have set."""
        return bool(self.faults & {"threads", "descriptors", "exception"}) and excused(error)

    @abstractmethod
    def hung(self, what: str, stacks: str) -> None:
        """Report that it hangs. Called in the watch's thread, just before the end of the process."""

    @abstractmethod
    def lift_limits(self) -> None:
        """Lift all limits, in a child of fork."""

    def _tell(self, now_s: float, *, last: bool = False) -> None:
        """Log what was played and done since the last time, as a line."""
        if now_s - self._told_s < 0.5 and not last:
            return
        self._told_s = now_s
        played, did = Counter(self.played), Counter(self.did)
        if (played, did) != self._told:
            self.log.note("counts", played - self._told[0], did - self._told[1])
            self._told = played, did

    def settled(self) -> None:
        """All that this life had to say is written."""
        self._tell(self.watch.now_s, last=True)
