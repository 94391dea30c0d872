"""The command line: `holdfast run`, `status`, `list`, `break`, `doctor`, …

One file a command or two, each imported only when it is asked for: `holdfast run` stands in front of cron jobs and
starts fast. Nothing here ends in a traceback unless HOLDFAST_TRACEBACK is set; what a status means is in `exits`.
"""

from __future__ import annotations

import os
import signal
import sys


def _is_the_program() -> bool:
    """True if this is our script, or `python -m holdfast`, and not a program that imports us."""
    called = sys.argv[0] if sys.argv else ""
    ours = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__main__.py")
    return called == ours or os.path.basename(called) in ("holdfast", "holdfast.exe")


#: Ctrl-C just ends us while we are imported, as SIGTERM does: there is nothing to clean up, and nothing to say.
_ends_at_once = _is_the_program() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _ends_at_once:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import warnings  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from typing import Any  # noqa: E402

__all__ = ["main"]

_USAGE = """\
usage: holdfast COMMAND …

Distributed locks on Redis and Valkey, from the command line.

commands:
  run NAME -- CMD …     run a command while holding a lock
  elect NAME -- CMD …   run a command while this host is the leader
  status NAME           who holds a lock, since when, how many wait
  list [PATTERN]        which locks are held or waited for, and by whom
  deadlocks             parties that wait for each other
  top [PATTERN]         the locks with most waiters, longest held or busiest, live
  watch NAME            what happens to a lock, line by line
  web                   a live page of the locks, for browsers on this machine
  break NAME            take a lock away from its holder, who is told
  ask NAME              ask its holder to release it soon
  doctor                can you keep locks on this server, and how safely
  lab                   the classic lock schemes and how they break (a package of its own)

options:
  -h, --help            this text; `holdfast COMMAND --help` has more, with examples
  --version             the version

environment:
  HOLDFAST_URL          the server, when no --url is given (redis://localhost:6379)
"""

_COMMANDS = ("run", "elect", "status", "list", "deadlocks", "top", "watch", "web", "break", "ask", "doctor", "lab")
#: Commands that share a file.
_FILES = {"elect": "run", "break": "breaking", "ask": "breaking"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (default: this process's arguments) names; returns the exit status."""
    global _ends_at_once
    try:
        if _ends_at_once:
            _ends_at_once = False
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return _main(argv)
    except KeyboardInterrupt:
        return 130  # exits.SIGNALLED and the signal's number, perhaps before that is imported


def _main(argv: Sequence[str] | None) -> int:
    from holdfast.cli import exits, report

    report.any_output()
    words = [*(sys.argv[1:] if argv is None else argv)]  # `list` may be our module
    show = warnings.showwarning

    def say(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        """Show what the client warns of as one sentence, and not as a line of our source."""
        if category is RuntimeWarning:
            report.say(str(message))
        else:
            show(message, category, *place, **more)

    warnings.showwarning = say
    try:
        try:
            return _dispatch(words)
        finally:
            report.flush()  # what it cannot write is said below
    except exits.UsageError as error:
        report.say(f"{error} (try: holdfast {error.command} --help)" if error.command else f"{error}")
        return exits.USAGE
    except BrokenPipeError:  # the reader of our output has gone; nothing is left to say
        return exits.SIGNALLED + 13
    except Exception as error:
        if os.environ.get("HOLDFAST_TRACEBACK"):
            raise
        report.say(exits.sentence(error))
        return exits.status_of(error)
    finally:
        warnings.showwarning = show


def _dispatch(words: list[str]) -> int:
    from holdfast.cli import exits

    first = words[0] if words else "--help"
    if first in ("-h", "--help", "help"):
        (sys.stdout if words else sys.stderr).write(_USAGE)
        return exits.OK if words else exits.USAGE
    if first in ("-V", "--version"):
        import holdfast

        sys.stdout.write(f"holdfast {holdfast.__version__}\n")
        return exits.OK
    if first not in _COMMANDS:
        known = ", ".join(_COMMANDS)
        raise exits.UsageError(f"there is no command {first!r}; there are: {known} (try: holdfast --help)")
    if first == "lab":
        return _lab(words[1:])
    from importlib import import_module

    file = import_module(f"holdfast.cli.{_FILES.get(first, first)}")  # no other file
    command: Callable[[list[str]], int] = getattr(file, f"main_of_{first}" if first in _FILES else "main")
    return command(words[1:])


def _lab(words: list[str]) -> int:
    """Run the command that the distribution of the lab has as an entry point."""
    from importlib.metadata import entry_points

    from holdfast.cli import exits, report

    for found in entry_points(group="holdfast.commands", name="lab"):
        command: Callable[[list[str]], int] = found.load()
        return command(words)
    report.say("`holdfast lab` is a package of its own: pip install holdfast-lab")
    return exits.UNAVAILABLE
