"""The `holdfast` logger of the standard library.

Law: nothing is logged where it happens (see `reporter.py`), no record has a password, and no trouble is logged once per
retry above DEBUG.

Theory: a record has the time and the thread of what it tells, and its facts as fields, all of which begin with
"holdfast_". A program that has not imported `logging` has no handlers; it is not imported for it.
"""

from __future__ import annotations

import sys
from typing import Any

from holdfast._reports.reporter import Reporter
from holdfast.errors import shown

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40

_WHAT = "%(kind)s %(name)r"
#: What has happened: its level, the message, and the names of its details behind the lease that it is about.
_RECORDS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "queued": (DEBUG, f"{_WHAT}: queued for it", ()),
    "acquired": (DEBUG, f"{_WHAT}: acquired after %(waited_s).3f s", ("waited_s",)),
    "busy": (DEBUG, f"{_WHAT}: not acquired within %(waited_s).3f s", ("waited_s",)),
    "failed": (DEBUG, f"{_WHAT}: not acquired after %(waited_s).3f s: %(error)s", ("waited_s", "error")),
    "adopted": (INFO, f"{_WHAT}: its lease was taken over from another process", ()),
    "broke": (INFO, f"{_WHAT}: taken away from %(holder)s (%(reason)s)", ("holder", "reason", "forced")),
    "released": (DEBUG, f"{_WHAT}: released after %(held_s).3f s", ("held_s",)),
    "renewed": (DEBUG, f"{_WHAT}: renewed, %(lag_s).3f s after it was due", ("lag_s",)),
    "suspect": (DEBUG, f"{_WHAT}: a renewal failed; still held", ()),
    "lost": (WARNING, f"{_WHAT}: the lease is lost (%(reason)s)", ("held_s", "reason")),
    "raised": (
        WARNING,
        f"{_WHAT}: the block raised %(error)s, and its lease is lost (%(reason)s)",
        ("reason", "error"),
    ),
    "retried": (DEBUG, "%(server)s: a request failed (%(error)s): %(message)s", ("server", "error", "message")),
    "trouble": (
        WARNING,
        "%(server)s: requests have been failing for %(lasts_s).1f s (%(error)s); they are tried again",
        ("server", "error", "lasts_s"),
    ),
    "trouble_over": (WARNING, "%(server)s: it answers again, after %(lasted_s).1f s", ("server", "lasted_s")),
    "observer_failed": (ERROR, "an observer raised %(error)s; it is called on, and this is not logged again", ()),
    "dropped": (WARNING, "%(count)d events were not told: a log handler or an observer is too slow", ("count",)),
}
#: Of an election: to lead is news.
_ELECTED = (INFO, f"{_WHAT}: elected after %(waited_s).3f s", ("waited_s",))

#: The one of the standard library, once it was found.
logger: Any = None


def enabled(level: int) -> bool:
    """True if a record of this level would be handled. May take a lock of `logging`: not on the path of times."""
    found = logger or find()
    return found is not None and bool(found.isEnabledFor(level))


def find() -> Any:
    """Find the logger; None where `logging` was not imported."""
    global logger
    logging: Any = sys.modules.get("logging")
    if logging is None or not (hasattr(logging, "NullHandler") and hasattr(logging, "getLogger")):
        return None  # not imported, or not yet
    found = logging.getLogger("holdfast")
    if not found.handlers:
        found.addHandler(logging.NullHandler())  # else it prints to stderr where a program has configured nothing
    logger = found
    return found


def _sink(at: float, event: str, details: tuple[Any, ...]) -> None:
    level, message, names = _RECORDS[event]
    lease = details[0] if details and hasattr(details[0], "fencing_token") else None
    values = details if lease is None else details[1:]
    if lease is not None and event == "acquired" and lease.kind == "election":
        level, message, names = _ELECTED
    elif lease is not None and event == "busy" and lease.holder is not None:
        message, names, values = f"{message}; held by %(holder)s", (*names, "holder"), (*values, lease.holder.who)
    if not enabled(level):
        return
    fields: dict[str, Any] = {}
    if lease is not None:
        fields = {"kind": lease.kind, "name": lease.name, "fencing_token": lease.fencing_token or None}
    fields.update(zip(names, values, strict=False))
    error = None
    if event == "observer_failed":
        error = (type(values[0]), values[0], values[0].__traceback__)
        fields["error"] = type(values[0]).__name__
    if "message" in fields:
        fields["message"] = shown(fields["message"])
    extra = {f"holdfast_{name}": value for name, value in fields.items()}
    extra["holdfast_event"] = event
    record = logger.makeRecord(logger.name, level, __file__, 0, message, (fields,), error, event, extra)
    record.relativeCreated += (at - record.created) * 1000
    record.created = at
    record.msecs = int(at % 1 * 1000)
    if lease is not None and lease.thread is not None:
        record.thread, record.threadName = lease.thread
        record.taskName = lease.task
    logger.handle(record)


#: Of this process.
LOG = Reporter(_sink, "holdfast-log")
