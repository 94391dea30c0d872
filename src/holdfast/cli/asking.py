"""Asking for a lease, which a signal ends, and saying what is waited for meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

import holdfast
from holdfast.cli import exits
from holdfast.cli.report import say
from holdfast.cli.signals import Signals
from holdfast.errors import shown

#: When it is said first what is waited for, and when again, s; how often it is looked while the server is in trouble.
_FIRST_SAID_S, _SAID_AGAIN_S, _TROUBLE_S = 0.5, 30.0, 1.0
#: For how long a look is waited for before it is said that there is no answer, s.
_LOOK_S = 0.3
#: For how long an acquire without a limit tries a server that is away, s.
_TRIED_S = 30.0
_NEVER = float("inf")


def acquired(
    acquire: Callable[[holdfast.Cancel], holdfast.Lease],
    signals: Signals,
    what: Callable[[], str],
    waits: str,
    timeout_s: float | None = None,
) -> holdfast.Lease:
    """Return the lease that a command needs, and say meanwhile what it waits for.

    Raises SystemExit when a signal comes first; a lease that came then is left to the closing of its client.
    """
    lease = None
    with (
        suppress(holdfast.AcquireCancelled),
        telling(what, f"waiting {waits}", timeout_s) if timeout_s != 0.0 else nullcontext(),
    ):
        lease = acquire(signals.ending)
    signals.wait(0.0)  # what came meanwhile was not meant for the command
    if lease is None or signals.ended_by:
        say(f"interrupted while waiting {waits}")
        raise SystemExit(exits.SIGNALLED + signals.ended_by)
    return lease


@contextmanager
def telling(what: Callable[[], str], waits_for: str, timeout_s: float | None = None) -> Iterator[None]:
    """Say what is waited for meanwhile: `waits_for`, and what `what` answers, which asks the server.

    Within a second, and when it is another trouble than before; on a terminal now and then.
    """
    over = threading.Event()
    with suppress(RuntimeError):  # no more threads can be started: then nothing is said
        threading.Thread(
            target=_tell, args=(over, what, waits_for, timeout_s), name="holdfast-waiting", daemon=True
        ).start()
    try:
        yield
    finally:
        over.set()


def _tell(over: threading.Event, what: Callable[[], str], waits_for: str, timeout_s: float | None) -> None:
    looking: threading.Thread | None = None
    found: list[tuple[str, bool]] = []
    said, pause_s, again_at = "", _FIRST_SAID_S, 0.0
    while not over.wait(pause_s):
        if looking is None:
            # In a thread of its own: a server that hangs must not hold up what is said.
            looking = threading.Thread(target=lambda: found.append(_look(what)), name="holdfast-look", daemon=True)
            try:
                looking.start()
            except RuntimeError:
                return  # see `telling`
        looking.join(_LOOK_S)
        if found:
            looking = None
        text, in_trouble = found.pop() if looking is None else (": the server does not answer", True)
        trouble = f"; trying for up to {_TRIED_S if timeout_s is None else timeout_s:g} s" if in_trouble else ""
        line = f"{waits_for}{text}{trouble}"
        if not over.is_set() and (line != said if in_trouble else time.monotonic() >= again_at):
            say(line)
            said = line
            again_at = 0.0 if in_trouble else time.monotonic() + _SAID_AGAIN_S if os.isatty(2) else _NEVER
        pause_s = _SAID_AGAIN_S if not in_trouble else _TROUBLE_S


def _look(what: Callable[[], str]) -> tuple[str, bool]:
    """Return what is found, and whether the server is in trouble."""
    try:
        return what(), False
    except holdfast.ServerUnreachable as error:
        return f": server {error.node} cannot be reached ({shown(error.because)})", True
    except holdfast.HoldfastError as error:
        return f": {error}", True


def held_by(client: holdfast.Client, name: str) -> str:
    """Why a lock is not to be had, in a few words."""
    try:
        readers = client.rwlock(name).readers()
    except holdfast.ConfigurationError:
        readers = 0  # over a quorum there are none
    if readers:
        return f"held by {sharers(readers)}"
    status = client.lock(name).status()
    if status.holder is not None:
        return f"held by {status.holder}"
    return "wanted by others that came first (it was free just now)" if status.waiters > 1 else "free just now"


def sharers(count: int) -> str:
    return "1 client that shares it" if count == 1 else f"{count} clients that share it"
