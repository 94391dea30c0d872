"""`holdfast break NAME` and `holdfast ask NAME`: take a lock away from its holder, or ask for it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

import holdfast
from holdfast.cli import exits
from holdfast.cli.options import Parser, add_report_options
from holdfast.cli.report import say
from holdfast.cli.table import Answer, answered, person
from holdfast.errors import quoted
from holdfast.web.view import KINDS

#: The fencing token of no holder.
_NO_ONE = -1

_EPILOG = """\
examples:
  holdfast break nightly-report --reason 'host is gone'
  holdfast break --yes --holder 1763812345678901 nightly-report    only if it is still held by this fencing token
  holdfast break --kind semaphore --holder TOKEN encode            one of those that hold a slot

Its lease is lost at once: an asyncio body is cancelled, a command of `holdfast run` is killed. One that does not answer
may go on until it looks at its lease; what it writes then has an old fencing token.

exit status: 0 when it was broken; 66 no one holds it  75 another client holds it by now, or you answered no
  64 usage  69 server not available  77 access refused"""

_EPILOG_OF_ASK = """\
examples:
  holdfast ask nightly-report --reason 'deploying'

What follows is for the holder to decide: `lease.wanted`, `on_wanted=`, `holdfast run --on-wanted SIGNAL`.

exit status: 0 when a holder was told; 66 no one holds it  75 its holder hears nothing, or another one holds it by now
  64 usage  69 server not available  77 access refused"""


def main_of_break(words: list[str]) -> int:
    parser = _parser("break", "Take a lock away from its holder, who is told, and hand it to the next one.", _EPILOG)
    parser.add_argument("--yes", action="store_true", help="do not ask whether to do it")
    parser.add_duration("--grace", "how long the holder has to release it (default: 0.5s)", 0.5)
    options = parser.parse_args(words)
    if not options.yes and not (os.isatty(0) and os.isatty(2)):
        parser.error("--yes is needed where no one can be asked (stdin and stderr are no terminal)")
    return answered(options, "break", _break)


def main_of_ask(words: list[str]) -> int:
    parser = _parser("ask", "Ask the holder of a lock to let go soon.", _EPILOG_OF_ASK)
    return answered(parser.parse_args(words), "ask", _ask)


def _parser(command: str, description: str, epilog: str) -> Parser:
    parser = Parser(command, description=description, epilog=epilog)
    parser.add_argument("name", metavar="NAME", help="the lock")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why, for the holder; who asks is told anyway")
    parser.add_argument(
        "--holder", metavar="TOKEN", type=_holder, help="only this holder: its token, or its fencing token"
    )
    parser.add_argument("--kind", choices=KINDS, help="if more than one is held under that name")
    add_report_options(parser)
    return parser


def _holder(given: str) -> int | str:
    return int(given) if given.isascii() and given.isdigit() and len(given) < 20 else given


def _break(client: holdfast.Client, options: argparse.Namespace) -> Answer:
    holders = [options.holder]
    if not options.yes:
        shown = _shown(client, options)
        if not shown.found:
            return _none(options.name, shown)
        options.kind = shown.kind
        if not _confirmed(options.name, shown):
            say(f"nothing was done to {quoted(options.name)}")
            return Answer(_facts(options.name, shown.kind, (), shown.found), [], exits.NOT_ACQUIRED)
        if options.holder is None:
            holders = [*shown.found]  # those that were shown, and no other one
    broken = [
        client.break_(options.name, kind=options.kind, holder=holder, reason=options.reason, grace=options.grace)
        for holder in holders
    ]
    done = [each for each in broken if each]
    if not done:
        return _none(options.name, broken[-1])
    forced = [holder for each in done for holder in each.forced]
    taken = [holder for each in done for holder in each.holders]
    late = ", which did not answer and may not know yet"
    lines = [
        f"{done[0].kind} {options.name}: taken from {holder}{late if holder in forced else ''}" for holder in taken
    ]
    facts = _facts(options.name, done[0].kind, taken)
    return Answer({**facts, "forced": [holder.token for holder in forced]}, lines)


def _shown(client: holdfast.Client, options: argparse.Namespace) -> holdfast.Broken:
    """Find what is held, by breaking what no one has."""
    kinds: tuple[Any, ...] = ("lock", "semaphore", "election") if options.kind is None else (options.kind,)
    seen = [client.break_(options.name, kind=kind, holder=_NO_ONE) for kind in kinds]  # which breaks nothing
    held = [each for each in seen if each.found]
    if len(held) > 1:
        raise exits.UsageError(
            f"{quoted(options.name)} is held as {', '.join(str(each.kind) for each in held)}: say --kind", "break"
        )
    return held[0] if held else seen[0]


def _confirmed(name: str, shown: holdfast.Broken) -> bool:
    for holder in shown.found:
        fence = f"fencing token {holder.fencing_token}, " if holder.fencing_token else ""
        say(f"{shown.kind} {quoted(name)} is held by {holder} ({fence}token {holder.token})")
    os.write(2, b"holdfast: take it away? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _ask(client: holdfast.Client, options: argparse.Namespace) -> Answer:
    asked = client.ask(options.name, kind=options.kind, holder=options.holder, reason=options.reason)
    if not asked.holders and not asked.deaf:
        return _none(options.name, asked)
    what = f"{asked.kind} {options.name}"
    lines = [f"{what}: asked {holder}" for holder in asked.holders]
    lines += [f"{what}: {holder} hears nothing" for holder in asked.deaf]
    facts = _facts(options.name, asked.kind, asked.holders)
    status = exits.OK if asked else exits.NOT_ACQUIRED
    return Answer({**facts, "deaf": [holder.token for holder in asked.deaf]}, lines, status)


def _none(name: str, came: holdfast.Broken | holdfast.Asked) -> Answer:
    """Tell that the holder that was meant is there no more."""
    facts = _facts(name, came.kind, (), came.found)
    if not came.found:
        return Answer(facts, [f"no one holds {name}"], exits.NOT_HELD)
    return Answer(facts, [f"{came.kind} {name} is held by another one now: {came.found[0]}"], exits.NOT_ACQUIRED)


def _facts(
    name: str, kind: str | None, holders: Sequence[holdfast.Holder], found: Sequence[holdfast.Holder] = ()
) -> dict[str, Any]:
    return {"name": name, "kind": kind, "holders": [*map(person, holders)], "found": [*map(person, found)]}
