"""What observers are told, and how it gets there: of each client, and of each acquisition.

Laws: what is not wanted costs one question for each acquire; no user's code runs where something happens, but
for `Observer.capture`, before anything is sent; what an observer raises is logged once, and reaches no lock.

Theory: `Reports` belongs to a client. Where neither an observer nor the level of the logger asks for more, all leases
share it, and it tells of losses alone; else each has a `_Detailed`.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord, Report
from holdfast._reports import log
from holdfast._reports.log import DEBUG, LOG, enabled
from holdfast._reports.reporter import Reporter
from holdfast._runtime.clock import clock
from holdfast.errors import ConfigurationError, quoted

#: Failures that come with the end of a client, not from a server.
_NO_TROUBLE = frozenset({"closed", "MOVED", "ASK", "NOSCRIPT"})


class LeaseInfo:
    """What an event is about: one acquisition, and the lease that came of it. The same object for all its events.

    `kind`: "lock", "read lock", "semaphore", …; `name`; `fencing_token`: 0 until it is acquired; `asked_at`: when the
    acquire began (Unix time, s); `waited_s`: how long it took; `captured`: what `Observer.capture` has returned then;
    `holder`: of one that was busy, the `Holder` in its way, as in `AcquireTimeout`; `queue_full`: it did not wait,
    since `queue_limit` others did.
    """

    __slots__ = (
        *("asked_at", "captured", "fencing_token", "holder", "kind", "name", "queue_full", "task", "thread"),
        "waited_s",
    )

    def __init__(self, kind: str, name: str, fencing_token: int = 0) -> None:
        self.kind = kind
        self.name = name
        self.fencing_token = fencing_token
        self.asked_at = time.time()
        self.waited_s = 0.0
        self.captured: Any = None
        self.holder: Any = None
        self.queue_full = False
        #: Its id and name, and the name of the task, for the log; None where it is not known.
        self.thread: tuple[int, str] | None = None
        self.task: str | None = None

    def __repr__(self) -> str:
        return f"<LeaseInfo of {self.kind} {self.name!r}: fencing token {self.fencing_token}>"


class Observer:
    """Told what happens to the locks of a client: `holdfast.connect(url, observer=…)`. Override what you need.

    Every acquire ends with `acquired`, `busy` or `failed`; every `acquired` is followed by `released` or `lost`.

    The methods are called in order, by one thread for each client, a moment after the fact: they may block, but not for
    long, since later events wait (10,000 at most; what comes beyond that is dropped, and the log says so). What they
    raise is logged once. They never reach a lock: it is renewed, released and handed on meanwhile. A forked child is
    told of its own leases only.
    """

    def capture(self) -> Any:
        """Called by the thread or task that acquires, before it does; `LeaseInfo.captured`. It must not block."""

    def queued(self, lease: LeaseInfo) -> None:
        """Held by another client, and queued for."""

    def acquired(self, lease: LeaseInfo, waited_s: float) -> None:
        """Acquired after `waited_s` seconds."""

    def busy(self, lease: LeaseInfo, waited_s: float) -> None:
        """Not acquired within the timeout, or not at once by `try_acquire`."""

    def failed(self, lease: LeaseInfo, waited_s: float, error: str) -> None:
        """Not acquired for another reason: `error` is the name of the exception's class."""

    def released(self, lease: LeaseInfo, held_s: float) -> None:
        """Released, or handed over to another process."""

    def lost(self, lease: LeaseInfo, held_s: float | None, reason: str) -> None:
        """Lost, with the `reason` of `LeaseLost`. `held_s` is None where `released` was told before: a release that was
        not waited for has found that the lease was not held any more.
        """

    def renewed(self, lease: LeaseInfo, lag_s: float) -> None:
        """Renewed, `lag_s` after that was due: below a third of the ttl when all is well."""

    def suspect(self, lease: LeaseInfo) -> None:
        """A renewal failed; it is still held."""

    def trouble(self, server: str, error: str, lasts_s: float) -> None:
        """Requests to a server have been failing for a while (0.3 s). Told once, until it is over."""

    def trouble_over(self, server: str, lasted_s: float) -> None:
        """The server answers again."""


_METHODS = tuple(name for name in vars(Observer) if not name.startswith("_"))


class Reports(Report):
    """What one client tells; itself the report of all leases of which only a loss is told."""

    def __init__(self, observer: Any = None) -> None:
        self._observer = observer
        self.detailed = False  # Python finds it here ten times as fast as in the class
        self._has_failed = False
        self._reporter: Reporter | None = None
        if observer is not None:
            if isinstance(observer, type) or not any(callable(getattr(observer, name, None)) for name in _METHODS):
                raise ConfigurationError("observer", observer, "an object with methods of holdfast.Observer, or None")
            self._reporter = Reporter(self._sink, "holdfast-observer")

    def _sink(self, _at: float, event: str, details: tuple[Any, ...]) -> None:
        tell = LOG.send if event == "dropped" else self._call
        tell(event, *details)

    def _call(self, event: str, *details: Any) -> Any:
        """Call a method of the observer, if it has that; the first exception that one raises is logged."""
        method = getattr(self._observer, event, None)
        if method is None:
            return None
        try:
            return method(*details)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                LOG.send("observer_failed", error)

    def begin(self, kind: str, name: str, level: int = DEBUG) -> Report:
        """An acquire begins. `level`: that of the record of success."""
        logger = log.logger or log.find()
        logs: bool = logger is not None and logger.isEnabledFor(level)  # as `enabled`, without the call
        if self._reporter is None and not logs:
            return self
        return _Detailed(self, self._describe(kind, name), logs)

    def adopt(self, record: LeaseRecord) -> Report:
        """A lease that was acquired elsewhere is going to be held here."""
        LOG.send("adopted", LeaseInfo(record.label, record.name, record.fence))
        return self.begin(record.label, record.name)

    def broke(self, kind: str, name: str, fence: int, holder: str, reason: str, forced: bool) -> None:
        """This client has taken a lease away from its holder."""
        LOG.send("broke", LeaseInfo(kind, name, fence), holder, reason, forced)

    def lost(self, record: LeaseRecord, reason: str) -> None:
        if reason != "forked":
            info = LeaseInfo(record.label, record.name, record.fence)
            self.tell(True, "lost", info, clock() - record.held_since, reason)

    def raised(self, record: LeaseRecord, error: BaseException) -> None:
        """A block has raised that, and its lease is lost."""
        LOG.send("raised", LeaseInfo(record.label, record.name, record.fence), record.reason, type(error).__name__)
        note = f"holdfast: meanwhile the lease of {record.label} {quoted(record.name)} was lost ({record.reason})"
        try:
            error.add_note(f"{note}; another client may hold it now")
        except Exception:
            pass  # an exception that takes no notes

    def _describe(self, kind: str, name: str) -> LeaseInfo:
        info = LeaseInfo(kind, name)
        thread = threading.current_thread()
        info.thread = (thread.ident or 0, thread.name)
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None:
            try:
                task = asyncio.current_task()
            except (AttributeError, RuntimeError):  # another thread imports it at this moment; or no loop runs here
                task = None
            info.task = None if task is None else task.get_name()
        trio = sys.modules.get("trio")
        if trio is not None and info.task is None:
            try:
                info.task = trio.lowlevel.current_task().name
            except (AttributeError, RuntimeError):
                pass  # the same
        info.captured = self._call("capture")
        return info

    def tell(self, logs: bool, event: str, *details: Any) -> None:
        """Tell the observer, and the log if it is to be logged."""
        if self._reporter is not None:
            self._reporter.send(event, *details)
        if logs:
            LOG.send(event, *details)


class _Detailed(Report):
    """One acquisition, and its lease."""

    __slots__ = ("_asked_at", "_held_at", "_logs", "_reports", "info")

    detailed = True

    def __init__(self, reports: Reports, info: LeaseInfo, logs: bool) -> None:
        self._reports = reports
        self.info = info
        self._logs = logs  # asked for once: the answer may take a lock
        self._asked_at = clock()
        self._held_at: float | None = None

    def queued(self) -> None:
        self._reports.tell(self._logs, "queued", self.info)

    def acquired(self, record: LeaseRecord) -> None:
        now = clock()
        self._held_at = now
        info = self.info
        info.fencing_token, info.waited_s = record.fence, now - self._asked_at
        self._reports.tell(self._logs, "acquired", info, info.waited_s)

    def busy(self, waited_s: float, holder: Any, is_full: bool) -> None:
        self.info.holder, self.info.queue_full = holder, is_full
        self._reports.tell(self._logs, "busy", self.info, waited_s)

    def failed(self, error: BaseException) -> None:
        if self.info.fencing_token:
            self.released()
        else:
            self._reports.tell(self._logs, "failed", self.info, clock() - self._asked_at, type(error).__name__)

    def _held_s(self) -> float | None:
        """For how long it was held, for the one that tells of the end; None for all others."""
        held_at, self._held_at = self._held_at, None
        return None if held_at is None else clock() - held_at

    def released(self) -> None:
        held_s = self._held_s()
        if held_s is not None:
            self._reports.tell(self._logs, "released", self.info, held_s)

    def lost(self, record: LeaseRecord, reason: str) -> None:
        if reason != "forked":
            self._reports.tell(True, "lost", self.info, self._held_s(), reason)

    def renewed(self, record: LeaseRecord, lag_s: float) -> None:
        self._reports.tell(self._logs, "renewed", self.info, lag_s)

    def suspect(self, record: LeaseRecord) -> None:
        self._reports.tell(self._logs, "suspect", self.info)


class Troubles(dict[str, list[Any]]):
    """Servers that do not answer as they should: since when, what was last wrong, and whether that was told.

    Empty, and so as good as False, while all is well.
    """

    #: From when on trouble is told, s; after how long without any it counts as another one.
    LASTS_S = 0.3  # an acquire fails again within a second of its first failure, not just when that is over
    APART_S = 30.0

    def __init__(self, reports: Reports) -> None:
        super().__init__()
        self._reports = reports

    def saw(self, failure: RequestFailed) -> None:
        if failure.kind in _NO_TROUBLE or not failure.node:
            return
        now = clock()
        if enabled(DEBUG):
            LOG.send("retried", failure.node, failure.kind, failure.message)
        if not failure.transient:
            return
        since = self.get(failure.node)
        if since is None or now - since[1] > self.APART_S:
            self[failure.node] = [now, now, False]
            return
        since[1] = now
        if not since[2] and now - since[0] >= self.LASTS_S:
            since[2] = True
            self._reports.tell(True, "trouble", failure.node, failure.kind, now - since[0])

    def passed(self, node: str) -> None:
        """Note that a server has answered."""
        since = self.pop(node, None)
        if since is not None and since[2]:
            self._reports.tell(True, "trouble_over", node, clock() - since[0])
