"""`holdfast lab`: the classic schemes, and how they break on a real server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from holdfast.cli import exits
from holdfast.cli.options import Parser
from holdfast_lab import commands
from holdfast_lab.handles import PROCESSES, THREADS
from holdfast_lab.runs import UnknownName

__all__ = ["main"]

_USAGE = """\
usage: holdfast lab COMMAND …

How lock schemes fail: real servers, real faults, and verdicts from what happened.
The lab starts private servers and removes them again.

commands:
  list                    every scheme with its idea and its flaw, and every fault
  run SCHEME FAULT        one scheme under one fault, as a timeline with its verdict
  run all FAULT           every scheme under one fault, a line for each
  run all, report         the matrix of all schemes and faults, as one page
  torture MODULE:FACTORY  your own lock, under every fault that applies

exit status: 0 safe  1 not safe  69 not possible on this machine  64 wrong usage
"""
_TORTURE = """\
FACTORY is called with url, name and ttl (seconds), or urls (one for each server), by the names it takes, and returns
something with acquire and release, or lock and unlock, or a context manager; all of that may be asynchronous. If it has
ensure_held(), that is called before each step: False or an exception such as LockError means that the lock is lost:

  # mylocks.py
  def redis_py(url, name, ttl):
      return redis.Redis.from_url(url).lock(name, timeout=ttl)

Then: holdfast lab torture mylocks:redis_py"""
_WIDTH_MIN = 60
_PAGE = "report.html"


def main(words: list[str]) -> int:
    """The command."""
    first = words[0] if words else "--help"
    if first in ("-h", "--help"):
        (sys.stdout if words else sys.stderr).write(_USAGE)
        return exits.OK if words else exits.USAGE
    if first not in _COMMANDS:
        raise exits.UsageError(f"there is no command {first!r}; there are: {', '.join(_COMMANDS)}", "lab")
    try:
        return _COMMANDS[first](words[1:])
    except (UnknownName, ValueError) as error:
        raise exits.UsageError(str(error), "lab") from None


def _list(words: list[str]) -> int:
    parser = Parser("lab list", description="Every scheme and every fault.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return commands.list_all(parser.parse_args(words).json)


def _run(words: list[str]) -> int:
    parser = Parser(
        "lab run",
        description="One scheme under one fault, as a timeline with its verdict.",
        epilog="example: holdfast lab run set-nx-ex long-section",
    )
    parser.add_argument("scheme", metavar="SCHEME")
    parser.add_argument("fault", metavar="FAULT", nargs="?", help="required, except for `run all`")
    parser.add_argument(
        "--json", action="store_true", help="verdict and whole history, for programs; with `run all` the verdicts alone"
    )
    parser.add_argument("--all", action="store_true", help="every variant of the fault, not only the worst")
    parser.add_argument(
        "-o", "--output", help=f"with `run all`: the page to write (default: {_PAGE}; of one fault: none)"
    )
    _add_width(parser)
    _add_times(parser)
    _add_clients(parser)
    given = parser.parse_args(words)
    if given.scheme == "all":
        clients = _clients(given.clients)
        if given.fault is None or given.output is not None:
            return commands.report(
                given.output or _PAGE,
                faults=[given.fault] if given.fault else [],
                clients=clients,
                times=given.times,
                as_json=given.json,
            )
        return commands.run_fault(given.fault, clients=clients, times=given.times, as_json=given.json)
    if given.fault is None:
        parser.error("the following arguments are required: FAULT")
    if given.output is not None:
        parser.error("-o goes with `run all`")
    return commands.run(
        given.scheme,
        given.fault,
        as_json=given.json,
        all_runs=given.all,
        times=given.times,
        clients=given.clients or PROCESSES,
        width=given.width,
    )


def _report(words: list[str]) -> int:
    parser = Parser(
        "lab report",
        description="The matrix of all schemes and faults, as one page that needs no network. Takes a few minutes. "
        "A page that is there already is brought up to date: only what has changed is played again.",
    )
    parser.add_argument("-o", "--output", default=_PAGE, help=f"the page to write (default: {_PAGE})")
    parser.add_argument("--scheme", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--fault", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--force", action="store_true", help="also what has not changed since the page was written")
    _add_jobs(parser)
    _add_times(parser)
    _add_clients(parser)
    given = parser.parse_args(words)
    return commands.report(
        given.output,
        schemes=given.scheme,
        faults=given.fault,
        clients=_clients(given.clients),
        jobs=given.jobs,
        times=given.times,
        force=given.force,
    )


def _torture(words: list[str]) -> int:
    parser = Parser("lab torture", description="Your own lock, under every fault that applies.", epilog=_TORTURE)
    parser.add_argument("factory", metavar="MODULE:FACTORY")
    parser.add_argument("--json", action="store_true", help="for programs; with --show, with the histories")
    parser.add_argument("--show", action="store_true", help="add the timelines of what is not safe")
    parser.add_argument("-o", "--output", help="write the page of this row as well")
    parser.add_argument("--servers", type=_at_least(1), default=1, help="for a lock over several servers")
    _add_width(parser)
    _add_jobs(parser)
    _add_times(parser)
    _add_clients(parser)
    given = parser.parse_args(words)
    return commands.torture(
        given.factory,
        as_json=given.json,
        show=given.show,
        output=given.output,
        width=given.width,
        jobs=given.jobs,
        times=given.times,
        clients=_clients(given.clients),
        servers=given.servers,
    )


def _add_width(parser: Parser) -> None:
    parser.add_argument("--width", type=_at_least(_WIDTH_MIN), help="columns to use (default: the terminal's)")


def _add_jobs(parser: Parser) -> None:
    parser.add_argument("--jobs", type=_at_least(1), help="cells at a time (default: four for a CPU)")


def _add_times(parser: Parser) -> None:
    parser.add_argument(
        "--times", type=_at_least(1), default=1, help="play each cell that often; a verdict that changes is said"
    )


def _add_clients(parser: Parser) -> None:
    text = (
        "what the clients are: processes, or threads of one process (default: both; for `run SCHEME FAULT` processes)"
    )
    parser.add_argument("--clients", choices=(PROCESSES, THREADS), help=text)


def _clients(given: str | None) -> list[str]:
    return [PROCESSES, THREADS] if given is None else [given]


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text[:9]) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least {least}")
        return int(text[:9])

    return number


_COMMANDS = {"list": _list, "run": _run, "report": _report, "torture": _torture}
