"""`holdfast lab`: the classic schemes, and how they break on a real server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

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
    _add(parser, "as_json")
    return commands.list_all(**vars(parser.parse_args(words)))


def _run(words: list[str]) -> int:
    parser = Parser(
        "lab run",
        description="One scheme under one fault, as a timeline with its verdict.",
        epilog="example: holdfast lab run set-nx-ex long-section",
    )
    parser.add_argument("scheme", metavar="SCHEME")
    parser.add_argument("fault", metavar="FAULT", nargs="?", help="required, except for `run all`")
    _add(parser, "as_json", help="verdict and whole history, for programs; with `run all` the verdicts alone")
    parser.add_argument(
        "--all", dest="all_runs", action="store_true", help="every variant of the fault, not only the worst"
    )
    parser.add_argument(
        "-o", "--output", help=f"with `run all`: the page to write (default: {_PAGE}; of one fault: none)"
    )
    _add(parser, "width", "times", "clients")
    given = parser.parse_args(words)
    shared = {"clients": given.clients, "times": given.times, "as_json": given.as_json}
    if given.scheme == "all":
        if given.fault is None or given.output is not None:
            return commands.report(given.output or _PAGE, faults=[given.fault] if given.fault else [], **shared)
        return commands.run_fault(given.fault, **shared)
    if given.fault is None:
        parser.error("the following arguments are required: FAULT")
    if given.output is not None:
        parser.error("-o goes with `run all`")
    return commands.run(given.scheme, given.fault, all_runs=given.all_runs, width=given.width, **shared)


def _report(words: list[str]) -> int:
    parser = Parser(
        "lab report",
        description="The matrix of all schemes and faults, as one page that needs no network. Takes a few minutes. "
        "A page that is there already is brought up to date: only what has changed is played again.",
    )
    parser.add_argument("-o", "--output", default=_PAGE, help=f"the page to write (default: {_PAGE})")
    for name in ("scheme", "fault"):
        parser.add_argument(
            f"--{name}",
            dest=f"{name}s",
            metavar=name.upper(),
            action="append",
            default=[],
            help="only this one; may be repeated",
        )
    parser.add_argument("--force", action="store_true", help="also what has not changed since the page was written")
    _add(parser, "jobs", "times", "clients")
    return commands.report(**vars(parser.parse_args(words)))


def _torture(words: list[str]) -> int:
    parser = Parser("lab torture", description="Your own lock, under every fault that applies.", epilog=_TORTURE)
    parser.add_argument("spec", metavar="MODULE:FACTORY")
    _add(parser, "as_json", help="for programs; with --show, with the histories")
    parser.add_argument("--show", action="store_true", help="add the timelines of what is not safe")
    parser.add_argument("-o", "--output", help="write the page of this row as well")
    parser.add_argument("--servers", type=_at_least(1), default=1, help="for a lock over several servers")
    _add(parser, "width", "jobs", "times", "clients")
    return commands.torture(**vars(parser.parse_args(words)))


def _add(parser: Parser, *names: str, **more: str) -> None:
    """Add options that several commands have, by the names of their arguments."""
    for name in names:
        word = "--json" if name == "as_json" else f"--{name}"
        parser.add_argument(word, dest=name, **{**_OPTIONS[name], **more})


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text[:9]) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least {least}")
        return int(text[:9])

    return number


_OPTIONS: dict[str, dict[str, Any]] = {
    "as_json": {"action": "store_true", "help": "print JSON"},
    "width": {"type": _at_least(_WIDTH_MIN), "help": "columns to use (default: the terminal's)"},
    "jobs": {"type": _at_least(1), "help": "cells at a time (default: four for a CPU)"},
    "times": {"type": _at_least(1), "default": 1, "help": "play each cell that often; a verdict that changes is said"},
    "clients": {
        "choices": (PROCESSES, THREADS),
        "help": "what the clients are: processes, or threads of one process "
        "(default: both; for `run SCHEME FAULT` processes)",
    },
}
_COMMANDS = {"list": _list, "run": _run, "report": _report, "torture": _torture}
